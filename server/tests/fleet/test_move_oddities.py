"""What a customer may define that is hard to copy or to follow: it arrives as it was, changed meanwhile or not."""

import pytest

from server.tests.fleet.concurrent_changes import move_with_changes
from server.tests.fleet.stage import Fleet

pytestmark = pytest.mark.chaos

DEFINED = [
    "create materialized view unfilled as select 1 as a with no data",
    "create table base (id int, note text)", "create table derived (extra int) inherits (base)",
    "create table swapped (id int primary key, place int unique deferrable initially deferred)",
    "create table booked (id int, during int4range, exclude using gist (during with &&))",
    "create domain short as text check (length(value) < 20)", "create table by_domain (d short primary key, n int)",
    "create table wide (id int primary key, gone text, big text)", "alter table wide drop column gone",
    "create table watched (id int) partition by list (id)",
    "create table watched_1 partition of watched for values in (1)",
    "create table watched_rest partition of watched default", "create table seen (id int)",
    "create function see() returns trigger language plpgsql as"
    " $$ begin insert into public.seen values (new.id); return new; end $$",
    "create trigger always after insert on watched for each row execute function see()",
    "alter table watched enable always trigger always",
    "create table guarded (id int, owned_by text)", "alter table guarded enable row level security",
    "create policy nobody on guarded using (false)",
    "create table linked (id int primary key, up int references linked)",
    "create table by_full (id int)", "alter table by_full replica identity full",
    "create table made (id int generated always as identity primary key, n int)",
    "create table \"SELECT\" (\"a\"\"b\" int primary key, ctid_ int)",
]  # fmt: skip
FIRST = [
    "insert into base select g, 'b' from generate_series(1, 20) g", "insert into derived values (1, 'd', 2)",
    "insert into swapped select g, g from generate_series(1, 50) g",
    "insert into booked select g, int4range(g * 10, g * 10 + 5) from generate_series(1, 50) g",
    "insert into by_domain select g::text, g from generate_series(1, 30) g",
    "insert into wide select g, (select string_agg(md5((g * i)::text), '') from generate_series(1, 300) i)"
    " from generate_series(1, 20) g", "insert into watched select g % 3 from generate_series(1, 30) g",
    "insert into guarded select g, 'x' from generate_series(1, 10) g",
    "insert into linked select g, nullif(g - 1, 0) from generate_series(1, 40) g",
    "insert into by_full select g % 4 from generate_series(1, 40) g",
    "insert into made (n) select generate_series(1, 10)",
    "insert into \"SELECT\" select g, 1 from generate_series(1, 10) g",
]  # fmt: skip
THEN = [
    "update base set note = note || 'x'", "delete from only base where id % 2 = 0",
    "insert into derived values (2, 'e', 3)",
    "update swapped set place = 51 - place",
    "update booked set during = int4range(lower(during) + 1, upper(during) + 1)",
    "update by_domain set d = d || '!' where n > 10", "update wide set big = reverse(big) where id % 2 = 0",
    "update watched set id = id + 1", "insert into watched values (1), (7)", "delete from guarded where id < 4",
    "update linked set up = id", "delete from linked where id > 30", "delete from by_full where id = 1",
    "delete from by_full where ctid in (select ctid from by_full where id = 2 limit 3)",
    "insert into made (n) values (7)", "update \"SELECT\" set \"a\"\"b\" = \"a\"\"b\" + 100, ctid_ = 2",
]  # fmt: skip
LAST = [
    "update base set note = note || 'y' where id % 3 = 0", "update swapped set place = 51 - place",
    "delete from booked",
    "insert into by_domain values ('last', 1)", "update wide set big = big || 'z'", "insert into watched values (1)",
    "update guarded set owned_by = 'y'", "delete from linked where id > 20", "insert into by_full values (2), (2)",
    "insert into made (n) values (8)",
]  # fmt: skip


def test_unusual_objects_are_moved_unchanged(fleet: Fleet) -> None:
    expected: dict[str, object] = {}

    def change(statements: list[str]) -> None:
        with fleet.now.owner() as owner:
            for statement in statements:
                owner.execute(statement)

    def at_last() -> None:
        change(LAST)
        expected.update(fleet.now.checksums())

    change(DEFINED + FIRST)
    moved, _ = move_with_changes(fleet, {"data": lambda: change(THEN), "switch": at_last})
    assert (moved.attempts, fleet.cell()) == (1, "second")
    assert fleet.now.checksums() == expected
    with fleet.now.owner() as owner:
        assert owner.execute("select relispopulated from pg_class where relname = 'unfilled'").fetchone() == (False,)
        assert owner.execute("insert into made (n) values (9) returning id").fetchone() == (13,)
        before = owner.execute("select count(*) from seen").fetchone()
        owner.execute("insert into watched values (1), (5)")
        after = owner.execute("select count(*) from seen").fetchone()
        assert before is not None
        assert after == (before[0] + 2,), "its triggers act, and act once"
