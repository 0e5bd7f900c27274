"""Every call of both clients, and every subcommand, once against the real service."""

import datetime as dt
import inspect
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pandas
import pytest

import plainsql
from client.tests.test_command import run
from server.tests.service import Service


class Caller:
    """Calls either client in the same way, and notes what was called."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.called: set[str] = set()

    async def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.called.add(name)
        answer = getattr(self._client, name)(*arguments, **options)
        if inspect.isawaitable(answer):
            return await answer
        if isinstance(answer, AsyncIterator) and name != "stream":
            return [each async for each in answer]
        return list(answer) if isinstance(answer, Iterator) and name != "stream" else answer


@pytest.mark.parametrize("connect", [plainsql.connect, plainsql.connect_async])
async def test_every_call_works(service: Service, connect: Any) -> None:
    settings = {"ca_file": service.dev["ca_file"]}
    client = connect(service.data_url, service.api_key, **settings)
    do = Caller(client)
    await data_plane_calls(do)
    await key_calls(do)
    await database_calls(do)
    was = (await do("organization")).name
    assert (await do("rename_organization", "renamed")).name == "renamed"
    assert (await do("rename_organization", was)).name == was
    assert isinstance(await do("usage"), list)
    assert (await do("audit"))[0]["action"]
    token = (await do("create_session", scopes=["read"])).token
    of_session = connect(service.data_url, token, **settings)
    session = Caller(of_session)
    assert (await session("refresh_session")).scopes == ["read"]
    assert await session("end_session") is None
    with pytest.raises(plainsql.AccessError):
        await session("query", "select 1")
    of_session.close()
    client.close()
    calls = {name for name, member in vars(type(client)).items() if inspect.isfunction(member) and name[0] != "_"}
    inner = {"call", "interactive", "perform", "query_as_sent", "run_transaction", "stream_bytes"}
    assert do.called | session.called == calls - inner - {"close", "tell_when_unavailable"}


async def data_plane_calls(do: Caller) -> None:
    assert (await do("query", "select $1::int + 1", 1)).value() == 2
    stream = await do("stream", "select 1 as one")
    assert (stream.columns, stream.types, stream.read_only) == (("one",), ("int4",), True)
    stream.close()
    key = uuid4().hex
    together = await do("transaction", idempotency_key=key)
    pending = together.add("select 1 as one")
    done = together.run()
    done = await done if inspect.isawaitable(done) else done
    assert (pending.result.value(), done.attempts, len(done)) == (1, 1, 1)
    assert await do("request_outcome", key) == "committed"
    answer = await do("run", lambda mine: mine.query("select 7"))
    assert answer.value() == 7
    assert isinstance(await do("tables", detail="names"), list)
    assert (await do("health"))["status"] in ("ok", "degraded")
    assert (await do("server"))["service"] == "plainsql"
    assert (await do("bench", iterations=5))["success"]
    name = f"many_{uuid4().hex[:8]}"
    await do("query", f"create table {name} (id int)")
    assert await do("insert_rows", name, [{"id": 1}]) == 1
    assert await do("insert_frame", name, pandas.DataFrame({"id": [2, 3]})) == 2
    await do("query", f"drop table {name}")


async def key_calls(do: Caller) -> None:
    made = await do("create_key", "of every call", ["read"])
    replacing = await do("rotate_key", made.id, overlap_seconds=60)
    assert replacing.secret != made.secret
    assert {made.id, replacing.id} <= {each.id for each in await do("list_keys")}
    assert await do("revoke_key", replacing.id) is None


async def database_calls(do: Caller) -> None:
    name = f"every{uuid4().hex[:8]}"
    made = await do("create_database", name)
    assert (await do("rename_database", made.id, name + "x")).name == name + "x"
    (was,) = [each for each in await do("list_databases") if each.default]
    assert (await do("make_default_database", made.id)).default
    assert (await do("make_default_database", was.id)).default
    assert (await do("delete_database", made.id)).restorable_until
    assert (await do("restore_database", made.id)).state == "ready"
    branch = await do(
        "create_database", name + "-copy", branch_of=made.id, expires_at=dt.datetime(2099, 1, 1, tzinfo=dt.UTC)
    )
    assert (branch.branch_of, branch.expires_at) == (made.id, "2099-01-01T00:00:00Z")
    await do("delete_database", branch.id, restorable=False)
    # This service archives nothing; server/tests/operations/test_asked_restores.py restores.
    for name_of_call, arguments in (("restore_database_at", (made.id,)), ("create_branch_at", ("before", made.id))):
        with pytest.raises(plainsql.EngineError, match="can't restore this database to a point in time"):
            await do(name_of_call, *arguments, dt.datetime.now(dt.UTC))
    assert await do("list_restores") == []
    with pytest.raises(plainsql.AccessError):
        await do("get_restore", "rst_0")
    assert (await do("reset_database", name + "x"))["tables"] == 0
    await do("delete_database", made.id, restorable=False)


def test_every_verb_of_the_command_works(service: Service) -> None:
    name = f"verb{uuid4().hex[:8]}"
    (was,) = [each["name"] for each in json.loads(run(service, "databases", "-o", "json").stdout) if each["default"]]
    for arguments in (
        ["create", name], ["rename", name, name + "x"], ["default", name + "x"], ["default", was],
        ["branch", name + "x", name + "y", "--expires-at", "2099-01-01"], ["diff", name + "y"],
        ["delete", "--for-good", "--yes", name + "y"],
        ["delete", "--yes", name + "x"], ["restore", name + "x"],
        ["delete", "--for-good", "--yes", name + "x"], ["restores"],
    ):  # fmt: skip
        done = run(service, "databases", *arguments)
        assert done.returncode == 0, done.stderr
    assert run(service, "databases", "delete", "--yes", "nowhere").returncode == 1
    run(service, "keys", "create", name, "--scope", "read", "--expires-at", "2099-01-01T00:00:00Z")
    (made,) = [each for each in json.loads(run(service, "keys", "-o", "json").stdout) if each["name"] == name]
    assert run(service, "keys", "rotate", made["id"], "--overlap", "1").stdout.startswith("svc_k_")
    assert run(service, "keys", "revoke", made["id"], "--yes").returncode == 0
    measured = json.loads(run(service, "bench", "--seconds", "0.2", "--clients", "2", "-o", "json").stdout)
    assert measured[0]["p50_us"] <= measured[0]["p99_us"]
    assert run(service, "session", "--scope", "read").stdout.startswith("svc_s_")
