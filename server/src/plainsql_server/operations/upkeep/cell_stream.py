"""Doctor's check of the stream of a cell's WAL to another machine: whether it is received, and how far it is behind.

yield from stream(check, measures.stream)
"""

from collections.abc import Iterator

from plainsql_server.engine.admin.measures import StreamMeasures
from plainsql_server.operations.findings import Finding, broken, good, warning

# As the alert. A receiver is a fraction of a second behind.
_LAG_S = 30.0
_START = "Start plainsql-stream.service on the receiver's machine, or read its log: docs/backups.md."
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
    elif (measures.lag_s or 0) > _LAG_S:
        yield warning(check, f"The receiver of its WAL is slow. {_behind(measures)}", _START)
    else:
        yield good(check, f"Its WAL is received. {_behind(measures)}")


def _behind(measures: StreamMeasures) -> str:
    return f"{(measures.lag_bytes or 0) / 1e6:.1f} MB of {measures.lag_s or 0:.1f} s, at most, are not yet."
