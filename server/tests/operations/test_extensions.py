"""`plainsql-server cell extensions`, and what backups and the doctor make of extensions."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from plainsql_server.control_plane import cells
from plainsql_server.directory.connection import Directory
from plainsql_server.engine.admin.cell import TEMPLATE
from server.tests.customers import prepare_again
from server.tests.operations.diagnosis import assert_found, doctor
from server.tests.operations.stage import Stage


@pytest.fixture(autouse=True)
def default_list(stage: Stage) -> Iterator[None]:
    """The cell is shared, and its list stays with it."""
    yield
    stage.run("cell", "extensions", "local", "--default")


def states(stage: Stage, *options: str) -> dict[str, str]:
    shown = stage.run("cell", "extensions", "local", "--json", *options).stdout
    return {each["name"]: each["state"] for each in json.loads(shown)}


def test_an_operator_chooses_the_extensions_of_a_cell(stage: Stage) -> None:
    default = states(stage)
    assert default["citext"] == "offered"
    with stage.owner() as owner:
        owner.execute("create extension citext")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="not offered"):
            owner.execute("create extension tablefunc")
        chosen = states(stage, "--allow", "tablefunc", "--allow", "nowhere", "--allow", "dblink", "--refuse", "citext")
        assert (chosen["tablefunc"], chosen["nowhere"], chosen["dblink"]) == ("offered", "not installed", "not trusted")
        assert chosen.keys() == default.keys() - {"citext"} | {"tablefunc", "nowhere", "dblink"}
        # At once, in a session that was open before.
        owner.execute("create extension tablefunc")
        shown = {name for (name,) in owner.execute("select name from pg_available_extensions")}
        assert {"tablefunc", "citext"} <= shown, "citext is not offered now, but it is there"
        assert not {"nowhere", "dblink"} & shown
        owner.execute("drop extension citext")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="not offered"):
            owner.execute("create extension citext")
    assert_found(
        doctor(stage), "can't create dblink: allowed and installed, but not trusted", "docs/operating.md", "warning"
    )
    assert states(stage, "--default") == default
    rows = stage.ask(
        "select details -> 'extensions' ? 'nowhere' from audit where action = 'cell.extensions' order by id"
    )
    assert rows == [(True,), (False,)]


def test_a_list_may_be_empty(stage: Stage) -> None:
    assert states(stage, *(part for name in states(stage) for part in ("--refuse", name))) == {}
    with stage.owner() as owner:
        assert owner.execute("select name from pg_available_extensions").fetchall() == [("plpgsql",)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            owner.execute("create extension hstore")
    assert caught.value.diag.message_hint == "Available extensions: none."
    assert "Customers can create these extensions: none." in [each["found"] for each in doctor(stage)]


def test_the_list_survives_the_loss_of_the_template(stage: Stage) -> None:
    chosen = states(stage, "--allow", "tablefunc", "--refuse", "citext")
    with stage.postgres.connect() as admin:
        admin.execute(f"alter database {TEMPLATE} is_template false")
        prepare_again()
        admin.execute(f"drop database {TEMPLATE}")
    assert states(stage) == chosen
    stage.run("upgrade")
    assert states(stage) == chosen


def test_changes_at_the_same_time_are_all_made(stage: Stage) -> None:
    names = {f"nowhere{number}" for number in range(8)}

    async def change() -> None:
        async with Directory.open(stage.dsn) as directory:
            await asyncio.gather(*(cells.change_extensions(directory, "local", allow=[name]) for name in names))

    asyncio.run(change())
    assert names < states(stage).keys()


def test_a_change_that_is_not_audited_is_not_made(stage: Stage) -> None:
    before = states(stage)
    stage.ask("alter table audit rename to lost")
    stage.run("cell", "extensions", "local", "--allow", "tablefunc", exit_code=1)
    stage.ask("alter table lost rename to audit")
    assert states(stage) == before


def test_a_name_that_is_none_is_refused(stage: Stage) -> None:
    ended = stage.run("cell", "extensions", "local", "--allow", "a,b", exit_code=1)
    assert "'a,b' is not the name of an extension" in ended.stderr
    stage.run("cell", "extensions", "local", "--allow", "hstore", "--default", exit_code=2)


def test_an_unreviewed_extension_is_allowed_with_a_warning(stage: Stage) -> None:
    ended = stage.run("cell", "extensions", "local", "--allow", "ltree")
    assert "Not reviewed" in ended.stderr


def test_a_restored_database_has_its_extensions_with_the_same_restrictions(stage: Stage, tmp_path: Path) -> None:
    with stage.owner() as owner:
        owner.execute("create schema tools")
        owner.execute("create extension pgcrypto schema tools")
        owner.execute('create extension "uuid-ossp"')
        owner.execute("create table people (id uuid default uuid_generate_v4(), hash text)")
        owner.execute("insert into people (hash) values (tools.crypt('secret', tools.gen_salt('bf', 4)))")
    file = stage.backup(tmp_path / "main.backup")
    stage.run("restore", "--org", "acme", "copy", "--input", str(file))
    assert stage.checksums("copy") == stage.checksums()
    with stage.owner("copy") as owner:
        assert owner.execute("select hash = tools.crypt('secret', hash) from people").fetchone() == (True,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute("select uuid_generate_v1()")


def test_a_backup_is_not_restored_without_its_extensions(stage: Stage, tmp_path: Path) -> None:
    with stage.owner() as owner:
        owner.execute("create extension hstore")
    file = stage.backup(tmp_path / "main.backup")
    stage.run("cell", "extensions", "local", "--refuse", "hstore")
    ended = stage.run("restore", "--org", "acme", "copy", "--input", str(file), exit_code=1)
    assert 'the extension "hstore" is not offered' in ended.stderr
    assert "Available extensions: btree_gin" in ended.stderr
    assert stage.ask("select name from databases where state = 'ready'") == [("main",)]


def test_an_unknown_cell_is_not_found(stage: Stage) -> None:
    assert "no cell 'far'" in stage.run("cell", "extensions", "far", exit_code=1).stderr
