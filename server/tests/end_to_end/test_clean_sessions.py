"""Clean or thrown away: whatever a request does to its session, the next request of the same pool sees nothing of it.

Every kind of session state is left behind in every way that there is: by a command, by set_config, in a function, a
trigger, a view, a column's default and a DO block. The pools here have one connection, so that the next request is
served by the one that was just made dirty. PLAINSQL_TEST_SWITCHES says how often each kind is tried in the long test.
"""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.tests.service import Service, running_service

SWITCHES = int(os.environ.get("PLAINSQL_TEST_SWITCHES", "8"))

# The twelve kinds, and some settings more whose change would be felt.
KINDS = {
    "setting": "set work_mem = '9MB'",
    "custom setting": "set app.secret = 'leaked'",
    "prepared statement": "prepare leaked as select 'leaked'",
    "temporary table": "create temp table leaked as select 1 as a",
    "cursor": "declare leaked cursor with hold for select 'leaked'",
    "listening": "listen leaked",
    "advisory lock": "select pg_advisory_lock(42)",
    "role": "set role {owner}",
    "sequence": "select nextval('numbers')",
    "search path": "set search_path = pg_temp, public",
    "isolation": "set session characteristics as transaction isolation level read uncommitted",
    "commit": "set synchronous_commit = off",
}
MORE_KINDS = {
    "timeout": "set statement_timeout = 1234567",
    "date style": "set datestyle = 'German'",
    "time zone": "set timezone = 'Asia/Tokyo'",
    "encoding": "set client_encoding = 'LATIN1'",
    "read only": "set default_transaction_read_only = on",
    "session authorization": "set session authorization {owner}",
    "plan": "set enable_seqscan = off",
}
ALL_KINDS = KINDS | MORE_KINDS
SETTINGS = {
    "setting": ("work_mem", "9MB"),
    "custom setting": ("app.secret", "leaked"),
    "role": ("role", "{owner}"),
    "search path": ("search_path", "pg_temp, public"),
    "isolation": ("default_transaction_isolation", "read uncommitted"),
    "commit": ("synchronous_commit", "off"),
    "timeout": ("statement_timeout", "1234567"),
    "date style": ("datestyle", "German"),
    "time zone": ("timezone", "Asia/Tokyo"),
    "encoding": ("client_encoding", "LATIN1"),
    "read only": ("default_transaction_read_only", "on"),
    "session authorization": ("session_authorization", "{owner}"),
    "plan": ("enable_seqscan", "off"),
}
METHODS = (
    "command",
    "set_config",
    "function",
    "trigger",
    "view",
    "default",
    "do",
    "with parameters",
    "update of a view",
)

# Everything that a session can hold, in one row.
STATE = """
    select current_user::text as current_user, session_user::text as session_user, current_setting('role') as role,
        (select json_object_agg(name, setting order by name) from pg_settings
         where name not like 'transaction%' and not (name like '%.%' and setting = boot_val)) as settings,
        (select count(*) from pg_prepared_statements where from_sql) as prepared,
        (select count(*) from pg_class where relnamespace = pg_my_temp_schema()) as temporary,
        (select count(*) from pg_cursors where name <> '') as cursors,
        (select count(*) from pg_listening_channels()) as channels,
        coalesce(current_setting('app.secret', true), '') as secret
"""
REFUSED = {"listen_not_supported", "insufficient_privilege"}


@dataclass
class Tenant:
    """One key, and what its sessions look like when nobody has done anything to them."""

    service: Service
    key: str
    owner: str = ""
    clean: dict[str, Any] = field(default_factory=dict)

    def ask(self, sql: str, *params: Any) -> dict[str, Any]:
        body = {"sql": sql, "params": list(params)}
        answer: dict[str, Any] = self.service.call("POST", "/v1/query", key=self.key, json=body).json()
        return answer

    def state(self) -> dict[str, Any]:
        answer = self.ask(STATE)
        assert answer["success"], answer
        state: dict[str, Any] = answer["rows"][0]
        # A custom setting has an entry of its own once it was set, but no value any more.
        state["settings"].pop("app.secret", None)
        return state

    def leaks(self, kind: str = "") -> dict[str, Any]:
        """What a request sees that a fresh session would not show. The one question that comes first counts."""
        if kind == "sequence":
            # Not in the row of everything, because it is an error in a fresh session.
            answer = self.ask("select lastval()")
            return {"lastval": answer["rows"]} if answer["success"] else {}
        state = self.state()
        leaked = {name: value for name, value in state.items() if value != self.clean[name]}
        if "settings" in leaked:
            leaked["settings"] = dict(set(state["settings"].items()) - set(self.clean["settings"].items()))
        return leaked

    def leave_behind(self, kind: str, method: str) -> bool:
        """Whether the engine did it; some is refused, which leaves nothing behind either."""
        sql, *params = spelled(kind, method, self.owner)
        answer = self.ask(sql, *params)
        if not answer["success"]:
            assert answer["error"]["code"] in REFUSED or not self.may_write, (kind, method, answer["error"])
        return bool(answer["success"])

    @property
    def may_write(self) -> bool:
        return "default_transaction_read_only" in self.clean["settings"] and (
            self.clean["settings"]["default_transaction_read_only"] == "off"
        )


def spelled(kind: str, method: str, owner: str) -> tuple[str, ...]:
    """The statement that leaves this kind of state behind in this way, and its parameters."""
    command = ALL_KINDS[kind].format(owner=owner)
    quoted = command.replace("'", "''")
    name, value = SETTINGS.get(kind, ("app.secret", "leaked"))
    value = value.format(owner=owner)
    table = kind.replace(" ", "_")
    return {
        "command": (command,),
        "set_config": (f"select set_config('{name}', '{value}', false)",),
        "function": (f"select leave('{quoted}')",),
        "trigger": (f"insert into triggered values ('{quoted}')",),
        "view": (f"select * from viewed_{table}",),
        "default": (f"insert into defaulted_{table} (a) values (1)",),
        "do": (f"do $do$begin execute '{quoted}'; end$do$",),
        "with parameters": ("select leave($1)", command),
        "update of a view": (f"update pg_settings set setting = '{value}' where name = '{name}'",),
    }[method]


def make_code(tenant: Tenant) -> None:
    """The customer's own code, which runs unseen."""
    setup = [
        "create sequence numbers",
        "create function leave(command text) returns int language plpgsql as $$begin execute command; return 1; end$$",
        "create table triggered (command text)",
        "create function leave_by_trigger() returns trigger language plpgsql as"
        " $$begin execute new.command; return null; end$$",
        "create trigger leaving before insert on triggered for each row execute function leave_by_trigger()",
    ]
    for kind, command in ALL_KINDS.items():
        quoted = command.format(owner=tenant.owner).replace("'", "''")
        table = kind.replace(" ", "_")
        setup.append(f"create view viewed_{table} as select leave('{quoted}')")
        setup.append(f"create table defaulted_{table} (a int, b int default leave('{quoted}'))")
    for sql in setup:
        answer = tenant.ask(sql)
        assert answer["success"], answer


@contextmanager
def small_service(workers: int) -> Iterator[Service]:
    """One connection to each pool of each worker, and little time to remember that a database was plain."""
    variables = {"PLAINSQL_POOL_MAX_CONNECTIONS": "1", "PLAINSQL_PRINCIPAL_CACHE_MS": "20"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        with running_service(workers=workers) as service:
            yield service
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def tenant_of(service: Service, key: str) -> Tenant:
    tenant = Tenant(service, key)
    tenant.owner = str(tenant.ask("select current_user::text as who")["rows"][0]["who"])
    tenant.clean = tenant.state()
    return tenant


@contextmanager
def three_tenants(workers: int) -> Iterator[list[Tenant]]:
    """Two keys that may write and share a pool, and one that may read."""
    with small_service(workers) as service:
        writer = tenant_of(service, service.api_key)
        make_code(writer)
        yield [writer, tenant_of(service, service.new_key("write")), tenant_of(service, service.new_key("read"))]


@pytest.fixture(scope="module")
def tenants() -> Iterator[list[Tenant]]:
    with three_tenants(workers=1) as made:
        yield made


def methods_of(kind: str) -> list[str]:
    return [method for method in METHODS if kind in SETTINGS or method not in ("set_config", "update of a view")]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_next_request_of_the_same_pool_sees_nothing(tenants: list[Tenant], kind: str) -> None:
    first, second, reader = tenants
    done = Counter[str]()
    for method in methods_of(kind):
        done[method] += first.leave_behind(kind, method)
        assert second.leaks(kind) == {}, method
        reader.leave_behind(kind, method)
        assert reader.leaks(kind) == {}, method
    # The advisory lock is refused in every way, LISTEN only by name; the rest must have happened, or nothing is proven.
    expected = 0 if kind == "advisory lock" else len(methods_of(kind)) - (kind == "listening")
    assert done.total() == expected, done


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_session_state_does_not_leak_after_a_transaction(tenants: list[Tenant], kind: str) -> None:
    first, second, _ = tenants
    leave = ALL_KINDS[kind].format(owner=first.owner)
    done = 0
    for statements in (["select 1", leave], [leave, "select 1"], [leave, "select 1 / 0"]):
        answer = first.service.call("POST", "/v1/transaction", key=first.key, json={"statements": statements}).json()
        done += answer["success"]
        assert second.leaks(kind) == {}, statements
    assert done == (0 if kind in ("advisory lock", "listening") else 2)


@pytest.mark.timeout(1_800)
def test_twelve_kinds_of_session_state_leak_nothing_over_many_switches(tenants: list[Tenant]) -> None:
    assert leaks_of_many_switches(tenants, SWITCHES) == (SWITCHES * len(KINDS), [])


@pytest.mark.timeout(1_800)
def test_session_state_does_not_leak_with_two_workers() -> None:
    # Each method at least once.
    switches = max(len(METHODS), SWITCHES // 4)
    with three_tenants(workers=2) as tenants:
        assert leaks_of_many_switches(tenants, switches) == (switches * len(KINDS), [])


def leaks_of_many_switches(tenants: list[Tenant], switches: int) -> tuple[int, list[dict[str, Any]]]:
    """Several clients at once, who take turns on the same connections with different keys: how often, what was seen."""
    first, second, _ = tenants
    work = [(kind, methods_of(kind)[number % len(methods_of(kind))]) for number in range(switches) for kind in KINDS]

    def switch(job: tuple[int, tuple[str, str]]) -> dict[str, Any]:
        number, (kind, method) = job
        one, other = (first, second) if number % 2 else (second, first)
        one.leave_behind(kind, method)
        return other.leaks(kind)

    with ThreadPoolExecutor(4) as clients:
        return len(work), [found for found in clients.map(switch, enumerate(work)) if found]


def test_random_numbers_are_not_predictable_from_an_earlier_request(tenants: list[Tenant]) -> None:
    first, second, _ = tenants
    for method in ("select setseed(0.5)", "set seed = 0.5", "select leave('set seed = 0.5')"):
        foretold = []
        for _ in range(2):
            assert first.ask(method)["success"]
            foretold.append(second.ask("select random() as r")["rows"][0]["r"])
        assert foretold[0] != foretold[1], method


def test_customer_code_that_deallocates_prepared_statements_has_no_visible_effect(tenants: list[Tenant]) -> None:
    first, second, _ = tenants
    for command in ("deallocate all", "discard plans", "prepare plainsql_1 as select 1"):
        for _ in range(3):
            assert second.ask("select $1::int as a", 7)["rows"] == [{"a": 7}]
            first.ask("select leave($1)", command)
            assert second.ask("select $1::int as a", 7)["rows"] == [{"a": 7}]


def test_a_database_without_code_leaks_nothing_through_harmless_looking_statements(tenants: list[Tenant]) -> None:
    """The statements that hide what they do, in a database where ordinary ones are not cleaned after."""
    service = tenants[0].service
    service.customers.add_database("plain")
    tenant = tenant_of(service, service.new_key("write", database="plain"))
    assert tenant.ask("create sequence numbers")["success"]
    hidden: list[tuple[str, ...]] = [
        ("select U&\"set!005fconfig\" uescape '!' ('app.secret', 'leaked', false)",),
        ("select 1 as insert into temp leaked",),
        ("with x as (select 1 as a) select a as merge into temp leaked from x",),
        ("update pg_settings set setting = '9MB' where name = 'work_mem'",),
        ("select ('numbers'::regclass).nextval",),
        ("select s.nextval from unnest(array['numbers'::regclass]) as s",),
        ("select $1.ts_stat", "select to_tsvector(set_config('app.secret', 'leaked', false))"),
        ("create table d (a int, b text default ' on \"' || set_config('app.secret', 'leaked', false) || '\"(')",),
        ("insert into d (a) values (1)",),
    ]
    found = {}
    for sql, *params in hidden:
        assert tenant.ask(sql, *params)["success"], sql
        if leaks := tenant.leaks("sequence" if "nextval" in sql else ""):
            found[sql] = leaks
    assert found == {}


# Every way to read what an earlier statement has drawn from a sequence. In a fresh session, each of them is an error.
READS_OF_SEQUENCES = (
    "select lastval()", "select pg_catalog.lastval()", 'select "lastval"()', "select lastval\n()",
    "select lastval/**/()",
    'select U&"last!0076al" uescape \'!\' ()', "select currval('t_id_seq')", "select ('t_id_seq'::regclass).currval",
    "select s.currval from unnest(array['t_id_seq'::regclass]) as s", "with x as (select lastval() as a) table x",
    "insert into t (id, n) values (0, lastval())", "update t set n = currval('t_id_seq')", "values (lastval())",
    "delete from t where n = lastval()", "select query_to_xml('select lastval()', true, false, '')",
    "/*+ STREAM */ select lastval()", "explain analyze select lastval()", "create table u as select lastval()",
    "do $$ begin perform lastval(); end $$", "create materialized view v as select lastval()",
)  # fmt: skip


def test_no_statement_reads_what_an_earlier_insert_drew_from_a_sequence(tenants: list[Tenant]) -> None:
    """Sequences are discarded only before a statement that could read them, so none of those may be overlooked."""
    service = tenants[0].service
    service.customers.add_database("drawn")
    tenant = tenant_of(service, service.new_key("write", database="drawn"))
    assert tenant.ask("create table t (id serial, n int8)")["success"]
    read = []
    for sql in READS_OF_SEQUENCES:
        for harmless in ("insert into t (n) values (1)", "select n from t where id = 1", "update t set n = 2"):
            assert tenant.ask(harmless)["success"]
        statements = {"statements": [{"sql": "select 1"}, {"sql": sql}]}
        whole = service.call("POST", "/v1/transaction", key=tenant.key, json=statements).json()
        assert tenant.ask("insert into t (n) values (1)")["success"]
        answer = service.call("POST", "/v1/query", key=tenant.key, json={"sql": sql})
        if whole["success"] or '"success":true' in answer.text or "event: done" in answer.text:
            read.append(sql)
    assert read == []
    # With code that reads them, no statement is harmless any more.
    assert tenant.ask("create view v as select lastval() as a")["success"]
    assert tenant.ask("insert into t (n) values (1)")["success"]
    assert not tenant.ask("select a from v")["success"]


def test_misspelled_statements_do_not_mark_a_database_as_having_code(tenants: list[Tenant]) -> None:
    service = tenants[0].service
    service.customers.add_database("typed")
    tenant = tenant_of(service, service.new_key("write", database="typed"))
    for sql in ("selec 1", "(select 1) union (select 2)", "explain select 1", ""):
        tenant.ask(sql)
    with service.engine("plainsql_directory") as directory:
        assert directory.execute("select plain from databases where name = 'typed'").fetchone() == (True,)
