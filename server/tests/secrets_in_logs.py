"""What no log may hold, looked for in every log of every test when its process ends.

Owns the patterns: keys and tokens, and whatever PostgreSQL writes down of what a tenant does.
"""

import re
from pathlib import Path

_CREDENTIAL = re.compile(r"svc_[ks]_[0-9A-Za-z]{20,}")
# A line that a tenant's session wrote, by the prefix that cells have, but for how its connection ended.
_TENANTS_LINE = re.compile(
    r"[or]_[0-9a-f]{24}@d_[0-9a-f]{24} (?!FATAL|LOG:  (?:could not (?:send|receive) data|unexpected EOF))[A-Z]+: .*"
)
# What a server process adds to a line about the timelines of a failover: numbers and positions in the WAL alone. A
# standby also quotes this from its primary, as the next line of a message of its own.
_LSN = r"[0-9A-F]+/[0-9A-F]+"
_TIMELINES = "|".join(
    [
        rf"End of WAL reached on timeline \d+ at {_LSN}",
        rf"This server's history forked from timeline \d+ at {_LSN}",
        rf"Latest checkpoint is at {_LSN} on timeline \d+, but in the history of the requested timeline,"
        rf" the server forked off from that timeline at {_LSN}",
    ]
)
_HARMLESS = rf"(?:(?<=\] DETAIL:  )|(?<=^\tDETAIL:  ))(?:{_TIMELINES})\.$"
_STATEMENT = re.compile(rf"^.*(?:STATEMENT|DETAIL|CONTEXT|QUERY):  (?!{_HARMLESS}).*$", re.MULTILINE)


def refuse_secrets(*logs: Path) -> None:
    """Raises AssertionError if one of these logs holds what it must not. A log that is not there holds nothing."""
    for log in logs:
        if log.exists():
            text = log.read_text(errors="replace")
            for pattern in (_CREDENTIAL, _TENANTS_LINE, _STATEMENT):
                found = pattern.search(text)
                assert found is None, f"{log.name}: {found[0]}"
