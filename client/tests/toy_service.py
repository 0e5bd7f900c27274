"""A service of a few lines, for tests of interactive transactions that need no real one.

It keeps numbers under keys, and runs rehearsals and commits as the real one does.
"""

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

from plainsql.errors import Error, StatementError
from plainsql.interactive.session import InteractiveSession
from plainsql.result import Result


class Toy:
    """Numbers under keys: `select v from K`, `select v from all`, `insert K` (draws a number), `update K = N`.

    `select bump(K)` adds one and returns 0, as a function that writes may do. A frozen insert is `restore` with keys
    and numbers; the rows of several can be restored together, unless the key is `c`.
    """

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.drawn = 0
        self.requests: list[tuple[str, list[dict[str, Any]]]] = []
        self.retries: list[int | None] = []
        self.row_limit = 1_000
        # Whether each request waits once before it runs.
        self.waits = False

    def rehearsal(
        self, statements: list[dict[str, Any]], options: Any, max_retries: int | None, _nows: list[str]
    ) -> Generator[Any, Any, Any]:
        yield from ["wait"] if self.waits else []
        self.retries.append(max_retries)
        self.requests.append(("read" if options.read_only else "rehearsal", statements))
        before = dict(self.rows)
        try:
            answer = self._run(statements, read_only=bool(options.read_only))
        finally:
            self.rows = before
        return {**answer, "transaction": {"now": f"t{len(self.requests)}"}, "request_id": "req_toy"}

    def transaction(
        self, statements: list[dict[str, Any]], _options: Any, max_retries: int | None, _nows: list[str]
    ) -> Generator[Any, Any, Any]:
        yield from ["wait"] if self.waits else []
        self.retries.append(max_retries)
        self.requests.append(("commit", statements))
        before = dict(self.rows)
        try:
            answer = self._run(statements, read_only=False)
        except Error:
            self.rows = before
            raise
        return SimpleNamespace(results=[Result(each) for each in answer["results"]], notices=())

    def query(self, sql: str, _params: Any, options: Any) -> Generator[Any, Any, Any]:
        yield from ()
        self.requests.append(("query", [{"sql": sql}]))
        return Result(self._result({"sql": sql}, read_only=bool(options.read_only)))

    def _run(self, statements: list[dict[str, Any]], *, read_only: bool) -> dict[str, Any]:
        results = []
        for index, statement in enumerate(statements):
            try:
                result = self._result(statement, read_only=read_only)
            except StatementError as error:
                error.statement_index = index
                raise
            for kind, wanted in statement.get("expect", {}).items():
                if result[kind] != wanted:
                    raise service_error("serialization_failure", "40001", index)
            if statement.get("rows") is False:
                result["rows"] = []
            results.append(result)
        return {"results": results}

    def _result(self, statement: dict[str, Any], *, read_only: bool) -> dict[str, Any]:
        word, _, rest = statement["sql"].partition(" ")
        if read_only and (word != "select" or rest.startswith("bump")):
            raise service_error("read_only_sql_transaction", "25006", 0)
        rows, affected, frozen = getattr(self, f"_{word}")(rest, statement)
        digest = repr((rows, affected))
        width = len(rows[:1])
        result = {
            "columns": ["v"] * width, "types": ["int4"] * width, "rows": rows, "affected_rows": affected,
            "command": word.upper(), "truncated": len(rows) > self.row_limit, "timings": {"exec_us": 1},
            "digest": digest, "multiset_digest": repr((sorted(rows), affected)),
        }  # fmt: skip
        return {**result, "frozen": frozen} if statement.get("freeze") else result

    def _select(self, rest: str, _: Any) -> Any:
        key = rest.rsplit(maxsplit=1)[-1]
        if rest.startswith("bump"):
            key = key.removeprefix("bump(").removesuffix(")")
            self.rows |= {key: self.rows[key] + 1} if key in self.rows else {}
            return [[0]], 0, None
        if key == "all":
            return [[value] for value in self.rows.values()], 0, None
        return [[self.rows[key]]] if key in self.rows else [], 0, None

    def _insert(self, rest: str, _: Any) -> Any:
        key = rest.split(maxsplit=1)[0]
        self.drawn += 1
        rows, affected, _ = self._restore("", {"params": [[f"{key} {self.drawn}"]]})
        frozen = {"sql": "restore", "params": [[f"{key} {self.drawn}"]], "mergeable": key != "c"}
        return rows, affected, frozen

    def _restore(self, _rest: str, statement: dict[str, Any]) -> Any:
        rows = []
        for key, value in (each.split() for each in statement["params"][0]):
            if key in self.rows:
                raise service_error("unique_violation", "23505", 0)
            self.rows[key] = int(value)
            rows.append([int(value)])
        return rows, len(rows), None

    def _update(self, rest: str, _: Any) -> Any:
        key, _, value = rest.partition(" = ")
        found = key in self.rows
        if found:
            self.rows[key] = int(value)
        return [], int(found), None

    def _create(self, _rest: str, _: Any) -> Any:
        return [], 0, None


def service_error(code: str, sqlstate: str, index: int) -> StatementError:
    fields = {"code": code, "sqlstate": sqlstate, "message": code, "outcome": "rolled_back", "statement_index": index}
    return StatementError(fields, status=200)


def finish(steps: Any) -> Any:
    """Runs steps that never wait."""
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("The steps wait.")


class Program:
    """A program with a session on the toy."""

    def __init__(self, toy: Toy, **options: Any) -> None:
        self.session = InteractiveSession(toy, **options)  # type: ignore[arg-type]

    def run(self, sql: str) -> list[int]:
        done = finish(self.session.execute(sql, []))
        return [row[0] for row in done.rows] if isinstance(done, Result) else []

    def commit(self) -> None:
        finish(self.session.commit())
