"""GET /storage/test: a round trip that works, and what is said where the disk is full or the engine away."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from plainsql_server.http.data.storage import StorageAnswer
from server.tests.end_to_end import tenants
from server.tests.end_to_end.error_shape import error_of
from server.tests.end_to_end.own_databases import OwnDatabase, new_database
from server.tests.service import Service
from server.tests.small_disks import may_mount, small_disk

STEPS = ["write", "sync", "read", "verify", "delete"]
DISK_BYTES = 32 * 1024 * 1024


def test_a_round_trip_is_written_synced_read_verified_and_deleted(service: Service) -> None:
    database = new_database(service)
    checksums = set()
    for _ in range(3):
        response = database.call("GET", "/storage/test")
        assert response.status_code == 200, response.text
        trip = msgspec.json.decode(response.content, type=StorageAnswer)
        assert [step.name for step in trip.steps] == STEPS
        assert all(step.ok and step.us > 0 for step in trip.steps)
        assert trip.bytes == 1024 * 1024
        checksums.add(trip.checksum)
    assert len(checksums) == 3, "each time other bytes"
    assert all(checksum.startswith("sha256:") for checksum in checksums)
    assert database.objects() == set()


def test_the_storage_test_writes_to_the_wal(service: Service) -> None:
    database = new_database(service)
    with service.engine() as engine:
        (before,) = engine.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or ("",)
        assert database.call("GET", "/storage/test").status_code == 200
        query = "SELECT pg_current_wal_flush_lsn() - %s::pg_lsn"
        (written,) = engine.execute(query, (before,)).fetchone() or (0,)
    assert written > 1024 * 1024


def test_the_read_bytes_are_compared_with_the_written_ones(service: Service) -> None:
    """Rows that something changes on their way are noticed: here by a rule of the superuser's for all new tables."""
    database = new_database(service)
    with service.engine(database.engine_name) as engine:
        engine.execute(
            """
            create function public.bit_rot() returns event_trigger language plpgsql as $$
            declare made record;
            begin
                for made in select * from pg_event_trigger_ddl_commands() where object_type = 'table' loop
                    execute format('create trigger rot before insert on %s for each row when (new.number = 7)'
                        ' execute function public.rot()', made.object_identity);
                end loop;
            end $$
            """
        )
        engine.execute(
            "create function public.rot() returns trigger language plpgsql as"
            " $$ begin new.body := set_byte(new.body, 5, (get_byte(new.body, 5) + 1) % 256); return new; end $$"
        )
        engine.execute("create event trigger rotting on ddl_command_end execute function public.bit_rot()")
    response = database.call("GET", "/storage/test")
    assert response.status_code == 503, response.text
    body = response.json()
    assert body["error"]["code"] == "storage_failed"
    assert [(step["name"], step["ok"]) for step in body["steps"]] == [
        ("write", True), ("sync", True), ("read", True), ("verify", False), ("delete", True),
    ]  # fmt: skip
    assert not any("scratch" in name for _, name in database.objects())


def test_a_read_key_is_rejected(service: Service) -> None:
    error_of(service.call("GET", "/storage/test", key=tenants.read_key(service)), 403, "forbidden")


@contextmanager
def disk_of(service: Service, database: OwnDatabase) -> Iterator[Path]:
    """The database lives on a disk of its own, which is small."""
    owner = Path(service.dev["postgres"]["socket"]).stat()
    with small_disk(DISK_BYTES) as folder:
        os.chown(folder, owner.st_uid, owner.st_gid)
        with service.engine() as engine:
            engine.execute(f"CREATE TABLESPACE {database.name.replace('-', '_')} LOCATION '{folder}'".encode())
            move = f"ALTER DATABASE {database.engine_name} SET TABLESPACE "
            # Nobody may be connected to what is moved.
            engine.execute(f"ALTER DATABASE {database.engine_name} WITH ALLOW_CONNECTIONS false".encode())
            engine.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
                (database.engine_name,),
            )
            engine.execute((move + database.name.replace("-", "_")).encode())
            engine.execute(f"ALTER DATABASE {database.engine_name} WITH ALLOW_CONNECTIONS true".encode())
            yield folder
            engine.execute(f"DROP DATABASE {database.engine_name} WITH (FORCE)".encode())
            engine.execute(f"DROP TABLESPACE {database.name.replace('-', '_')}".encode())


@pytest.mark.skipif(not may_mount(), reason="only root may mount a small disk, and not everywhere")
def test_a_full_disk_is_503_and_leaves_nothing_behind(service: Service) -> None:
    database = new_database(service)
    with disk_of(service, database) as disk:
        assert database.call("GET", "/storage/test").status_code == 200
        filler = disk / "filler"
        left_bytes = shutil.disk_usage(disk).free
        filler.write_bytes(bytes(left_bytes - 256 * 1024))
        used_before = shutil.disk_usage(disk).used
        response = database.call("GET", "/storage/test")
        assert response.status_code == 503, response.text
        body = response.json()
        assert body["success"] is False
        assert (body["error"]["code"], body["error"]["sqlstate"]) == ("storage_failed", "53100")
        assert body["error"]["outcome"] == "rolled_back"
        assert [(step["name"], step["ok"]) for step in body["steps"]] == [("write", False)]
        assert int(response.headers["retry-after"]) > 0
        assert database.objects() == set()
        # The catalogs' own pages may have grown by some; the megabyte has not stayed.
        assert shutil.disk_usage(disk).used - used_before <= 256 * 1024
        filler.unlink()
        assert database.call("GET", "/storage/test").status_code == 200
        assert database.objects() == set()


def test_an_unavailable_postgresql_is_503(service: Service) -> None:
    database = new_database(service)
    with service.engine() as engine:
        engine.execute(f"ALTER DATABASE {database.engine_name} WITH ALLOW_CONNECTIONS false".encode())
    response = database.call("GET", "/storage/test")
    assert response.status_code == 503
    body = response.json()
    assert (body["error"]["code"], body["error"]["outcome"], body["steps"]) == ("storage_failed", "not_executed", [])
