"""Results that do not come in one piece: whatever their shape, they arrive whole, and the connection goes on."""

import pytest

from server.tests.service import Service

WIDTHS = [10, 1_000, 7_000, 9_000, 17_000, 60_000, 70_000, 300_000, 3_000_000]
COUNTS = [1, 2, 31, 32, 33, 500]


@pytest.mark.parametrize(
    ("width", "count"),
    [(width, count) for width in WIDTHS for count in COUNTS if width * count <= 20_000_000],
)
def test_every_row_is_complete(service: Service, width: int, count: int) -> None:
    rows = service.query(
        "select n, repeat(chr(97 + n % 26), $1::int) as text from generate_series(1, $2::int) n", width, count
    )["rows"]
    assert [row["n"] for row in rows] == list(range(1, count + 1))
    assert all(row["text"] == chr(97 + row["n"] % 26) * width for row in rows)
    assert service.value("select 42") == 42


def test_many_columns_are_complete(service: Service) -> None:
    columns = ", ".join(f"{number} as c{number}" for number in range(1_600))
    (row,) = service.query(f"select {columns}")["rows"]
    assert row == {f"c{number}": number for number in range(1_600)}
