"""Doctor's checks of the stream of a cell's WAL to another machine: whether it is received, its lag, the login.

yield from stream(check, measures.stream)
yield from receiver_login(check, facts.receiver)
"""

from collections.abc import Iterator

from plainsql_server.engine.admin.cell import STREAM_ROLE
from plainsql_server.engine.admin.login_rules import ReceiverRules
from plainsql_server.engine.admin.measures import STREAM_WITHIN_S, StreamMeasures
from plainsql_server.operations.findings import Finding, broken, good, warning

_START = "Restart plainsql-stream.service on the receiver's machine, or read its log: docs/backups.md."
_ANEW = "Make the slot anew, and receive into an empty folder: `A receiver whose slot is lost` in docs/backups.md."


def stream(check: str, measures: StreamMeasures | None) -> Iterator[Finding]:
    """Check the stream of a cell that should have one."""
    if measures is None:
        return
    if measures.is_lost:
        found = (
            "The slot of the receiver of its WAL is lost: it was away for too long."
            if measures.has_slot
            else "The receiver of its WAL has no slot."
        )
        yield broken(check, f"{found} If the cell is lost, so is what its archive does not have.", _ANEW)
    elif not measures.is_received:
        yield warning(check, f"Its WAL is not being received. {_behind(measures)}", _START)
    elif (measures.lag_s or 0) > STREAM_WITHIN_S:
        yield warning(check, f"The receiver of its WAL is slow. {_behind(measures)}", _START)
    else:
        yield good(check, f"Its WAL is received. {_behind(measures)}")


def receiver_login(check: str, rules: ReceiverRules | None) -> Iterator[Finding]:
    """Check that the receiver's login opens nothing but the stream."""
    if rules is None:
        return
    if rules.has_certificate:
        yield broken(
            check, "The receiver of its WAL logs in with a certificate, which opens all customers' databases, too.",
            "Set it up again with a password, and revoke the certificate: `Stream the WAL of a cell` in"
            " docs/backups.md.",
        )  # fmt: skip
    if not rules.is_kept_out:
        yield broken(
            check, f"pg_hba.conf does not reject {STREAM_ROLE} for all databases before its other lines.",
            "Write it again with `plainsql-server cell files` and the same options, and reload PostgreSQL.",
        )  # fmt: skip


def _behind(measures: StreamMeasures) -> str:
    return f"{(measures.lag_bytes or 0) / 1e6:.1f} MB of {measures.lag_s or 0:.1f} s, at most, are not yet."
