"""ARCHITECTURE.md names files and functions that exist, a query takes the path that it describes, and packages stay
small enough to live in.
"""

import ast
import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType

import pytest

from plainsql_server.assembly import Observer, build_data_application
from plainsql_server.settings import Settings
from server.tests.customers import Customers
from server.tests.http_server import port_of, started
from server.tests.module_index import PAGE, index
from server.tests.postgres import Postgres

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "server/src/plainsql_server"
CLIENT = ROOT / "client/src/plainsql"
MODULES_MAX = 20
HOPS_MAX = 12

_TEXT = (ROOT / "ARCHITECTURE.md").read_text()
_FUNCTION = re.compile(r"`([a-z_/]+\.py):([A-Za-z_.]+)`")


def test_the_index_of_modules_matches_their_docstrings() -> None:
    assert PAGE.read_text() == index(), "Run `make reference`."


def test_every_file_and_package_that_it_names_exists() -> None:
    named = set(re.findall(r"`([a-z_/]+(?:/|\.pyx?))`", _TEXT))
    assert len(named) > 50
    missing = {name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()}
    assert missing == set()


def hops() -> list[str]:
    """The numbered steps of a query, each as text."""
    path = _TEXT.partition("## The path of `POST /v1/query`")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. .*(?:\n {3,}.*)*", path, re.MULTILINE)


def defined_in(file: Path) -> set[str]:
    """The qualified names of the functions in a file."""

    def walk(node: ast.AST, prefix: str) -> Iterator[str]:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if not isinstance(each, ast.ClassDef):
                    yield f"{prefix}{each.name}"
                yield from walk(each, f"{prefix}{each.name}.")

    return set(walk(ast.parse(file.read_text()), ""))


def test_every_function_that_it_names_exists() -> None:
    named = set(_FUNCTION.findall(_TEXT))
    assert len(named) > 20
    assert {(file, name) for file, name in named if name not in defined_in(PACKAGE / file)} == set()


def test_the_path_of_a_query_has_few_hops_and_each_names_a_function() -> None:
    numbers = [hop.partition(".")[0] for hop in hops()]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert 0 < len(numbers) <= HOPS_MAX
    assert [hop for hop in hops() if not _FUNCTION.search(hop)] == []


@asynccontextmanager
async def served(dsn: str) -> AsyncIterator[int]:
    """The port of a data plane in this process."""
    # With a limit, so that nothing else asks the cell how many connections it allows while a query is watched.
    settings = Settings(directory_dsn=dsn, cell_max_connections=4)
    server = await started(build_data_application(settings, Observer()))
    try:
        yield port_of(server)
    finally:
        await server.shutdown()


@contextmanager
def calls() -> Iterator[list[tuple[str, str]]]:
    """The functions of ours that run in the block, by file and name, in the order of their calls."""
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            found.append((Path(code.co_filename).relative_to(PACKAGE).as_posix(), code.co_qualname))

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


async def ask(port: int, key: str) -> bytes:
    """The answer to a query, whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"sql": "select $1::int as n", "params": [7]}).encode()
    head = f"POST /v1/query HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_query_takes_the_path_that_is_described(postgres: Postgres, dsn: str) -> None:
    customers = Customers(dsn)
    customers.add_cell("local", postgres.conninfo)
    customers.add_organization("walker", "free")
    customers.add_database("main", "walker")
    key = customers.new_key("read", "write", organization="walker")
    async with served(dsn) as port:
        # The directory's connections are opened meanwhile.
        async with asyncio.timeout(30):
            while b'"rows":[{"n":7}]' not in await ask(port, key):
                continue
        with calls() as called:
            answer = await ask(port, key)
    assert b'"rows":[{"n":7}]' in answer
    described = [named for hop in hops() for named in _FUNCTION.findall(hop)]
    # One after the other, though others may call some of them in between: a connection is still being cleaned.
    rest = iter(called)
    assert [named for named in described if named not in rest] == []


def test_every_package_is_described() -> None:
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")}
    described = {each.rstrip("/") for each in re.findall(r"`([a-z_/]+/)`", _TEXT)}
    # A package whose parts are described needs no line of its own.
    own = {each for each in packages if not any(other.startswith(f"{each}/") for other in described)}
    assert (
        own
        - described
        - {".", "cli/cell", "cli/pki", "cli/setup", "directory/migrations", "directory/migrations/versions"}
        == set()
    )


def test_no_package_has_too_many_modules() -> None:
    modules = [path for top in (PACKAGE, CLIENT) for kind in ("*.py", "*.pyx") for path in top.rglob(kind)]
    # Migrations only grow in number.
    counts = Counter(path.parent for path in modules if path.stem != "__init__" and path.parent.name != "versions")
    assert {folder.name: count for folder, count in counts.items() if count > MODULES_MAX} == {}
