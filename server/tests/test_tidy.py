"""The style of the code, as far as a machine can see it: small files, small functions, a plain vocabulary.

Owns the two limits and the list of what may exceed them. The list only shrinks: an entry says the exact
size of today, so that neither growth nor an entry that is no longer needed goes unnoticed.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("server/src", "client/src", "server/tests", "client/tests", "js/tests", "console/tests", "bench")

# The codebases that we learn from have files of 70 to 250 lines and functions of 5 to 11, in the median. These
# limits are far above that: code that exceeds one has two things in one place.
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
# Cython is harder to read.
CYTHON_LINES_MAX = 400

# "path/of/file.py" or "path/of/file.py::Class.function", and its lines today.
ALLOWED: Mapping[str, int] = {}


def python_files(root: Path) -> list[Path]:
    """Every Python file that we wrote, in a stable order."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def cython_files(root: Path) -> list[Path]:
    """Every Cython module that we wrote."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.pyx"))


def measure(path: Path, root: Path) -> Iterator[tuple[str, int, int]]:
    """The name, lines and limit of a file and, if it is Python, of every function in it."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(root).as_posix()
    if path.suffix == ".pyx":
        yield name, len(text.splitlines()), CYTHON_LINES_MAX
        return
    yield name, len(text.splitlines()), FILE_LINES_MAX
    for function, lines in _functions(ast.parse(text), prefix=""):
        yield f"{name}::{function}", lines, FUNCTION_LINES_MAX


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{prefix}{child.name}."
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            assert child.end_lineno is not None
            yield inner.removesuffix("."), child.end_lineno - child.lineno + 1
        yield from _functions(child, inner)


def complaints(root: Path, allowed: Mapping[str, int]) -> list[str]:
    """What is too long, and what the list of exceptions says wrongly."""
    too_long = {
        name: lines
        for path in (*python_files(root), *cython_files(root))
        for name, lines, limit in measure(path, root)
        if lines > limit
    }
    found = [f"{name} has {lines} lines: split it" for name, lines in too_long.items() if name not in allowed]
    for name, lines in allowed.items():
        if name not in too_long:
            found.append(f"{name} is within the limit: take it off the list")
        elif too_long[name] != lines:
            found.append(f"{name} has {too_long[name]} lines, the list says {lines}: it may only shrink")
    return found


def imported_names(path: Path) -> set[str]:
    """The top-level packages that a file imports, wherever in the file it does so."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def _write_module(root: Path, text: str) -> None:
    folder = root / "bench"
    folder.mkdir()
    (folder / "sample.py").write_text(text, encoding="utf-8")


def test_no_file_and_no_function_is_too_long_and_the_list_of_exceptions_is_exact() -> None:
    assert Path(__file__).resolve() in python_files(ROOT)
    assert ROOT / "server/src/plainsql_server/lane/lane.pyx" in cython_files(ROOT)
    assert complaints(ROOT, ALLOWED) == []


def test_core_imports_only_the_standard_library_and_itself() -> None:
    files = sorted((ROOT / "server/src/plainsql_server/core").rglob("*.py"))
    assert files
    foreign = {path.name: imported_names(path) - sys.stdlib_module_names - {"plainsql_server"} for path in files}
    assert {name: names for name, names in foreign.items() if names} == {}


def test_no_test_loads_the_certificates_of_public_authorities() -> None:
    """Which takes 40 to 90 ms for each client; `server/tests/plain_http.py` does without."""
    names = {f"httpx.{name}" for name in ("get", "post", "put", "patch", "delete", "request", "Client", "AsyncClient")}
    found = []
    for path in python_files(ROOT):
        if "tests" not in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        module = ast.parse(text if "httpx." in text else "")
        calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
        for call in (call for call in calls if ast.unparse(call.func) in names):
            if not {"verify", "transport"} & {keyword.arg for keyword in call.keywords}:
                found.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert not found, f"use server/tests/plain_http.py, or pass `verify`: {found}"


def test_a_file_of_501_lines_is_too_long_and_one_of_500_is_not(tmp_path: Path) -> None:
    _write_module(tmp_path, "x = 1\n" * 501)
    assert complaints(tmp_path, {}) == ["bench/sample.py has 501 lines: split it"]
    (tmp_path / "bench/sample.py").write_text("x = 1\n" * 500, encoding="utf-8")
    assert complaints(tmp_path, {}) == []


def test_a_cython_module_of_401_lines_is_too_long_and_one_of_400_is_not(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/sample.pyx").write_text("cdef int x\n" * 401, encoding="utf-8")
    assert complaints(tmp_path, {}) == ["bench/sample.pyx has 401 lines: split it"]
    (tmp_path / "bench/sample.pyx").write_text("cdef int x\n" * 400, encoding="utf-8")
    assert complaints(tmp_path, {}) == []


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_method_of_71_lines_is_too_long_and_one_of_70_is_not(tmp_path: Path, keyword: str) -> None:
    head = f"class Box:\n    {keyword} open(self):\n"
    _write_module(tmp_path, head + "        pass\n" * 70)
    assert complaints(tmp_path, {}) == ["bench/sample.py::Box.open has 71 lines: split it"]
    (tmp_path / "bench/sample.py").write_text(head + "        pass\n" * 69, encoding="utf-8")
    assert complaints(tmp_path, {}) == []


@pytest.mark.parametrize(("listed", "complaint"), [(501, None), (502, "may only shrink"), (500, "may only shrink")])
def test_an_exception_must_state_the_exact_size(tmp_path: Path, listed: int, complaint: str | None) -> None:
    _write_module(tmp_path, "x = 1\n" * 501)
    found = complaints(tmp_path, {"bench/sample.py": listed})
    assert (complaint is None and found == []) or (complaint is not None and complaint in found[0])


def test_an_exception_that_is_no_longer_needed_must_go(tmp_path: Path) -> None:
    _write_module(tmp_path, "x = 1\n")
    assert complaints(tmp_path, {"bench/gone.py": 600}) == ["bench/gone.py is within the limit: take it off the list"]
