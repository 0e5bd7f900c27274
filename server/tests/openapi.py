"""The OpenAPI documents as files: `python -m server.tests.openapi` writes them, and a test compares them.

Owns their place and their form on disk.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from plainsql_server.http.app.reference import ReferencePage
from server.tests.test_completeness import declared_routes

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "openapi"


def documents() -> dict[str, dict[str, Any]]:
    """The document of each plane, made of the routes that the assembly declares."""
    planes = asyncio.run(declared_routes())
    return {plane: ReferencePage(plane).describe(routes) for plane, routes in planes.items()}


def as_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for plane, document in documents().items():
        (FOLDER / f"{plane}.json").write_text(as_text(document), encoding="utf-8")


if __name__ == "__main__":
    write()
