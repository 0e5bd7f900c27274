"""Which rejected statements get a hint about parameters. `test_hints.py` has PostgreSQL's own positions."""

import pytest

from plainsql_server.core.placeholders import hint_for

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("sql", "sqlstate", "at", "hint"),
    [
        ("select * from t where id = %s", "42601", "%", "$1, $2"),
        ("insert into t values (%s, %s)", "42601", "%s,", "$1, $2"),
        ("select * from t where id = %(name)s", "42601", "%", "$1, $2"),
        ("select price %s from t", "42703", "s from", "$1, $2"),
        ("select * from t where id = :name", "42601", ":", "$1, $2"),
        ("select * from t where id = ? and x = 1", "42601", "and", "$1, $2"),
        ("select * from t where id = ?", "42601", "", "$1, $2"),
        ("select * from t where id in $1", "42601", "$1", "ANY($1)"),
        ("select s from t", "42703", "s", None),
        ("select 5 % size from t", "42703", "size", None),
        ("select a from t where $1 in", "42601", "", None),
        ("select * form t", "42601", "t", None),
        ("select a::nothing(", "42601", "(", None),
        ("select * from t where id = %s", "42P01", "t where", None),
        ("select % size from t", "42601", "%", None),
    ],
)
def test_a_hint_is_given_for_placeholders_of_others_alone(sql: str, sqlstate: str, at: str, hint: str | None) -> None:
    position = (sql.rindex(at) if at else len(sql)) + 1
    found = hint_for(sql, sqlstate, position)
    assert found is None if hint is None else hint in (found or "")


def test_without_a_position_there_is_no_hint() -> None:
    assert hint_for("select %s", "42703", None) is None
