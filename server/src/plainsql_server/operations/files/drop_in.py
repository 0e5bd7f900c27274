"""The systemd drop-in for the unit of a cell's PostgreSQL: `memory.conf`.

    memory_drop_in()

`BOUNDS` is also part of the unit of a cell that Patroni runs.
"""

from plainsql_server.operations.files.cell import BACKEND_MEMORY_BYTES, HEADING

# Resource limits and hardening for every systemd unit that runs PostgreSQL.
BOUNDS = f"""\
# Memory limit of one backend, without the shared buffers. A statement that needs more fails alone.
LimitDATA={BACKEND_MEMORY_BYTES // 1024**2}M
# If the machine runs out of memory, a backend is killed and not the server.
OOMScoreAdjust=-900
Environment=PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj PG_OOM_ADJUST_VALUE=0
# A separate scheduler group. The priorities that the guard sets apply within it.
CPUWeight=100
# A cell's host runs only the cell, so its processes need access to nothing else.
NoNewPrivileges=yes
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
"""


def memory_drop_in() -> str:
    """Return the text of the drop-in."""
    target = "/etc/systemd/system/postgresql@.service.d/plainsql.conf"
    return f"{HEADING}# A drop-in for PostgreSQL's own unit: {target}\n[Service]\n{BOUNDS}"
