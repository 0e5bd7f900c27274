"""What a digest can be compared with, and how little of a commit is recorded."""

import secrets
from typing import Any

from server.tests.end_to_end import tenants
from server.tests.end_to_end.transactions import fresh_table, post, run
from server.tests.load import Node, running_node
from server.tests.service import Service


def digests(service: Service, sql: str, **fields: Any) -> set[str]:
    result = run(service, {"sql": sql, "digest": True}, dry_run=True, **fields)["results"][0]
    return {result["digest"], result["multiset_digest"]}


async def digests_at(node: Node, key: str, sql: str) -> set[str]:
    async with node.client(key) as client:
        await client.post("/v1/transaction", {"statements": [{"sql": sql, "digest": True}]})
        result = (await client.answer()).body["results"][0]
    return {result["digest"], result["multiset_digest"]}


async def test_all_processes_agree_before_and_after_a_restart(service: Service) -> None:
    table = fresh_table(service)
    service.query(f"insert into {table} values (1), (2)")
    read = f"select n from {table} order by n"
    here = digests(service, read)
    assert digests(service, read, key=tenants.read_key(service)) == here
    with running_node(service.directory_dsn, workers=2) as node:
        for _ in range(4):
            assert await digests_at(node, service.api_key, read) == here
        node.stop()
        node.start()
        assert await digests_at(node, service.api_key, read) == here


def test_another_database_has_other_digests_of_the_same_rows(service: Service) -> None:
    here = digests(service, "select 1 as n")
    assert here.isdisjoint(digests(service, "select 1 as n", database=tenants.second_database(service)))
    assert here.isdisjoint(digests(service, "select 1 as n", key=tenants.free_key(service)))


def test_a_commit_of_many_verified_reads_is_recorded_in_few_bytes(service: Service) -> None:
    columns = [f"a_column_with_a_long_name_{number} text" for number in range(20)]
    table = fresh_table(service, f"n int primary key, {', '.join(columns)}")
    read = f"select * from {table} where n = 1"
    result = run(service, {"sql": read, "digest": True}, dry_run=True)["results"][0]
    verified = {"sql": read, "expect": {"digest": result["digest"]}, "rows": False}
    statements = [*[verified] * 500, {"sql": f"insert into {table} values (2) returning *", "rows": False}]
    answers = [post(service, *statements, idempotency_key=KEY) for _ in range(2)]
    assert answers[0].content == answers[1].content
    assert answers[1].headers["idempotency-replayed"] == "true"
    results = answers[0].json()["results"]
    assert {key for each in results for key in each}.isdisjoint({"digest", "multiset_digest"})
    assert [each["row_count"] for each in results] == [0] * 500 + [1]
    size_bytes = len(answers[0].content)
    print(f"{size_bytes} bytes for 500 verified reads of 21 columns")
    assert size_bytes < 150 * len(statements)


KEY = f"key-{secrets.token_hex(8)}"


def test_a_digest_is_returned_with_an_expectation_if_it_is_asked_for(service: Service) -> None:
    digest = run(service, {"sql": "select 1 as n", "digest": True})["results"][0]["digest"]
    both = {"sql": "select 1 as n", "digest": True, "expect": {"digest": digest}}
    result = run(service, both)["results"][0]
    assert (result["digest"], result["columns"], result["rows"]) == (digest, ["n"], [{"n": 1}])
