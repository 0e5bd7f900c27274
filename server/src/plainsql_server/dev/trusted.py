"""Lets customers of `dev` create pgvector, which comes with the wheel's PostgreSQL but is not trusted there.

PostgreSQL 18 looks for extensions in several folders. The first one has a copy of pgvector's control file that marks it
as trusted and names the folder with its scripts. In production, an operator does this; docs/operating.md says how.
"""

from pathlib import Path

_NAME = "vector.control"


def trust_vector(programs: Path, folder: Path) -> list[Path]:
    """Writes the control file and returns the paths that were made; none if pgvector is not beside these programs."""
    scripts = programs.parent / "share" / "extension"
    # Debian's PostgreSQL has its extensions elsewhere, so this is the wheel's, which is never older than 18.
    if not (scripts / _NAME).exists():
        return []
    inner = folder / "extension"
    inner.mkdir(parents=True, exist_ok=True)
    control = (scripts / _NAME).read_text()
    (inner / _NAME).write_text(f"{control}\ntrusted = true\ndirectory = '{scripts}'\n")
    return [folder, inner, inner / _NAME]


def setting_for(folder: Path) -> dict[str, str]:
    """The setting with which PostgreSQL looks into the folder first."""
    return {"extension_control_path": f"{folder}:$system"}
