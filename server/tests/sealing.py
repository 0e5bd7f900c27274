"""The keys with which running services seal secrets: other planes on the same directory need them, too."""

from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

_files: dict[str, Path] = {}


def note_keys(socket: str, file: Path) -> None:
    """A directory behind this socket has secrets that are sealed with the keys in the file."""
    _files[socket] = file


def keys_of(directory_dsn: str) -> str | None:
    """The value of PLAINSQL_SECRETS_KEYS for a plane on this directory; None if no service runs on it."""
    file = _files.get(str(conninfo_to_dict(directory_dsn).get("host")))
    return None if file is None else file.read_text().strip()


def key_settings(directory_dsn: str) -> dict[str, str]:
    """The same as a variable of the environment."""
    return {"PLAINSQL_SECRETS_KEYS": keys_of(directory_dsn) or ""}
