"""Measures what has to be watched on a cell over months: transaction ids, replication, archiving, its certificate.

    async with watching(conninfo, admin_role) as connection:
        print(await measure(connection))
    async with directory.connection() as connection:
        print(await measure_archiving(connection))

`doctor` and the control plane's metrics use it. For a cell, it takes at most six short queries of PostgreSQL's own
views and of the guard's file, and reads no tenant's objects.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import class_row

from plainsql_server.core.clock import now
from plainsql_server.engine.admin.activity import rows
from plainsql_server.engine.admin.cell import DISK_FILE, STREAM_ROLE

# What docs/backups.md promises: if a machine is lost, so is what was acknowledged in this time before, at most.
# `doctor` and the alerts warn beyond it. A healthy cell or directory stays below: it closes a file of the WAL after
# 50 s, and archives it within seconds; a receiver is a fraction of a second behind. The alerts wait for two minutes:
# after a burst of writes, both catch up by themselves.
ARCHIVE_WITHIN_S = 60.0
STREAM_WITHIN_S = 5.0

# What stays free on a disk, for what others write there.
KEPT_FREE_RATIO = 0.1

# The columns of ArchivingMeasures that every role may read.
_ARCHIVER = """
    current_setting('archive_mode') <> 'off' AS is_archiving,
    (SELECT coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false)
     FROM pg_stat_archiver) AS is_archiving_failing,
    (SELECT CASE WHEN last_failed_time > coalesce(last_archived_time, '-infinity') THEN last_failed_wal END
     FROM pg_stat_archiver) AS failed_wal
"""
_MEASURES = f"""
    SELECT (SELECT max(age(datfrozenxid)) FROM pg_database) AS transaction_id_age,
           (SELECT max(mxid_age(datminmxid)) FROM pg_database) AS multixact_id_age,
           current_setting('data_directory') AS data_directory,
           current_setting('archive_mode') <> 'off' AND current_setting('archive_command') LIKE '%pgbackrest%'
               AS has_pgbackrest,
           (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'
            AND usename IS DISTINCT FROM '{STREAM_ROLE}') AS standbys,
           CASE WHEN pg_is_in_recovery() THEN NULL ELSE (
               SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)) FROM pg_stat_replication
               WHERE state = 'streaming')::bigint END AS behind_bytes,
           pg_is_in_recovery() AS is_standby,
           {_ARCHIVER}
"""
# A file of the WAL that is closed, and waits, has a file in archive_status that was made when it was closed. What is in
# it was written in the time before, of at most archive_timeout. What is in the open file was written since the last one
# was archived, and at most archive_timeout ago, because a file that was written to is closed then. In an idle cell,
# some 100 bytes are at the start of the open file.
#
# PostgreSQL keeps a record of the last base backup in pg_wal, and pgBackRest leaves its name in it. Another program's
# backup replaces the record, and a standby has none, but the history of its timeline since it leads. No backup since
# then is known, so the age counts from that.
_ARCHIVE = """
    WITH settings AS (
        SELECT (SELECT nullif(setting::float8, 0) FROM pg_settings WHERE name = 'archive_timeout') AS open_s,
               (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size') AS file_bytes
    ), waiting AS (
        SELECT count(*) AS files, extract(epoch FROM now() - min(modification))::float8 AS closed_s
        FROM pg_ls_archive_statusdir() WHERE name ~ '^[0-9A-F]{24}[.](partial[.])?ready$'
    ), records AS (
        SELECT modification, pg_read_file('pg_wal/' || name, 0, 4096, true) LIKE '%LABEL: pgBackRest %' AS is_ours
        FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}[.][0-9A-F]{8}[.]backup$' OR name ~ '^[0-9A-F]{8}[.]history$'
    ), record AS (
        SELECT coalesce(bool_or(is_ours), false) AS is_ours, extract(epoch FROM now() - coalesce(
            max(modification) FILTER (WHERE is_ours), max(modification)))::float8 AS age_s
        FROM records
    )
    SELECT CASE WHEN waiting.closed_s IS NOT NULL THEN greatest(0, waiting.closed_s) + coalesce(open_s, 0)
                WHEN mod(pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0'), file_bytes) > 8192
                THEN least(open_s, extract(epoch FROM now() - coalesce(last_archived_time, pg_postmaster_start_time())))
                ELSE 0 END::float8 AS archive_lag_s,
           waiting.files AS files_to_archive,
           record.is_ours AS has_archive_backup, greatest(0, record.age_s) AS archive_backup_age_s
    FROM settings, waiting, record, pg_stat_archiver
"""
# The roles that log in to the directory may not read archive_status, so the lag counts from when a file was archived
# last. If only the open file is not archived, it is at most archive_timeout. The record of a backup, which is archived
# like a file, does not say which file is open.
_ARCHIVING = f"""
    SELECT {_ARCHIVER},
           CASE WHEN pg_is_in_recovery() OR current_setting('archive_mode') = 'off' THEN NULL ELSE (
               WITH archived AS (
                   SELECT extract(epoch FROM now()
                              - coalesce(last_archived_time, pg_postmaster_start_time())) AS since_s,
                          coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false) AS is_failing,
                          pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') AS written_bytes,
                          (SELECT nullif(setting::float8, 0) FROM pg_settings WHERE name = 'archive_timeout') AS open_s,
                          (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size') AS file_bytes,
                          last_archived_wal
                   FROM pg_stat_archiver
               ), place AS (
                   SELECT *, CASE WHEN last_archived_wal ~ '^[0-9A-F]{{24}}$' THEN
                       ('x' || substr(last_archived_wal, 9, 8))::bit(32)::bigint * 4294967296
                       + (('x' || substr(last_archived_wal, 17, 8))::bit(32)::bigint + 1) * file_bytes
                       WHEN last_archived_wal IS NULL THEN 0
                       ELSE written_bytes - mod(written_bytes, file_bytes) END AS archived_bytes
                   FROM archived
               )
               SELECT CASE WHEN is_failing OR written_bytes >= archived_bytes + file_bytes THEN since_s
                           WHEN written_bytes > archived_bytes + 8192 THEN least(open_s, since_s)
                           ELSE 0 END
               FROM place)::float8 END AS archive_lag_s
"""
# The time for which something is not received: as PostgreSQL measures it while the receiver follows. Otherwise, from
# the file of the WAL with the first byte that was not received. The file was last written to at its time; the byte is
# older than that by at most the time after which a file is closed.
_STREAM = f"""
    WITH slot AS (
        SELECT s.active, s.wal_status, r.state, r.flush_lag,
               pg_wal_lsn_diff(pg_current_wal_flush_lsn(), coalesce(r.flush_lsn, s.restart_lsn))::bigint AS lag_bytes,
               pg_walfile_name(coalesce(r.flush_lsn, s.restart_lsn) + 1) AS file
        FROM pg_replication_slots AS s LEFT JOIN pg_stat_replication AS r ON r.pid = s.active_pid
        WHERE s.slot_name = '{STREAM_ROLE}'
    ), settings AS (
        SELECT setting::float8 AS open_s FROM pg_settings WHERE name = 'archive_timeout'
    )
    SELECT coalesce(slot.active, false) AS is_received,
           slot.wal_status IS NULL OR slot.wal_status = 'lost' AS is_lost,
           slot.wal_status IS NOT NULL AS has_slot,
           CASE WHEN slot.lag_bytes IS NOT NULL THEN greatest(0, slot.lag_bytes) END AS lag_bytes,
           CASE WHEN slot.lag_bytes <= 0 THEN 0
                WHEN slot.active AND slot.state = 'streaming' THEN coalesce(extract(epoch FROM slot.flush_lag), 0)
                WHEN slot.lag_bytes IS NOT NULL THEN open_s + greatest(0, extract(epoch FROM now() - (
                    SELECT modification FROM pg_ls_waldir() WHERE name = slot.file)))
           END::float8 AS lag_s
    FROM settings LEFT JOIN slot ON true
    WHERE slot.wal_status IS NOT NULL OR EXISTS (SELECT FROM pg_roles WHERE rolname = '{STREAM_ROLE}')
"""
# Only certificates: the file may also hold the private key, which must not leave the cell. Only superusers may read
# files, unless they have allowed others to. A certificate chain is far shorter than what is read.
_CERTIFICATE = """
    SELECT substring(
        pg_read_file(current_setting('ssl_cert_file'), 0, 65536, true)
        FROM '-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----') AS pem
    WHERE current_setting('ssl') = 'on'
      AND has_function_privilege('pg_read_file(text, bigint, bigint, boolean)', 'EXECUTE')
"""


# PostgreSQL can't tell what is free on its disk. If it is not this machine's, `cell guard` writes the figure to a file
# in the data folder. PostgreSQL runs no program for this.
#
# The file is written every ten seconds. A figure that is older says nothing about now.
DISK_MAX_AGE_S = 60.0
_DISK_FOLDER = """
    SELECT current_setting('data_directory') AS folder,
           has_function_privilege('pg_read_file(text, bigint, bigint, boolean)', 'EXECUTE')
           AND has_function_privilege('pg_stat_file(text, boolean)', 'EXECUTE') AS may_read
"""
_DISK_FIGURE = f"""
    SELECT pg_read_file('{DISK_FILE}', 0, 100, true) AS text,
           extract(epoch FROM clock_timestamp() - (pg_stat_file('{DISK_FILE}', true)).modification)::float8 AS age_s
"""
_FIGURES = re.compile(r"(\d+) +(\d+)\n")


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The free bytes of a disk that programs without privileges may use, and all bytes."""

    free_bytes: int
    total_bytes: int

    @property
    def free_ratio(self) -> float:
        return self.free_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivingMeasures:
    """Whether a server archives its WAL."""

    is_archiving: bool
    # Whether the last attempt to archive a WAL file failed.
    is_archiving_failing: bool
    # The file of that attempt.
    failed_wal: str | None = None
    # Since when, at most, something is in the WAL that is not archived; 0 if all is. None: it is not to be archived.
    archive_lag_s: float | None = None
    # How many closed files of the WAL wait. 0 for the directory, which does not say so.
    files_to_archive: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMeasures:
    """A cell's stream. The cell has a role for a receiver, or a slot."""

    # Whether a receiver is connected.
    is_received: bool
    # Whether the cell does not keep what was not received: the receiver was away for too long, or has no slot.
    is_lost: bool
    has_slot: bool
    # What was not received: how much, and since when, at most. None if the slot is lost.
    lag_bytes: int | None
    lag_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMeasures(ArchivingMeasures):
    """The measures of one cell."""

    # The age of the oldest transaction id of any database, and of its oldest multixact.
    transaction_id_age: int
    multixact_id_age: int
    data_directory: str
    # Standbys that follow it, and how many bytes the last of them is behind; None if there are none.
    standbys: int
    behind_bytes: int | None
    # The server's certificate; None if there is no TLS, or the admin may not read it.
    certificate_pem: str | None
    # Whether pgBackRest archives it, so that a restore can be rehearsed.
    has_pgbackrest: bool = False
    # Since its last backup, if it has a record of one. Otherwise, since when it has none; None: it never had a record.
    has_archive_backup: bool = False
    archive_backup_age_s: float | None = None
    # None: no other machine is to receive its WAL.
    stream: StreamMeasures | None = None
    # None: it is not known, or not lately, how much is free on its disk, so no branches can be made.
    disk: DiskSpace | None = None


async def measure(connection: AsyncConnection) -> CellMeasures:
    """Returns the measures. Raises psycopg's errors, which `activity.watching` converts to the service's."""
    (measured,) = await rows(connection, _MEASURES)
    is_standby = measured.pop("is_standby")
    (archive,) = await rows(connection, _ARCHIVE) if measured["is_archiving"] and not is_standby else [{}]
    certificate = await rows(connection, _CERTIFICATE)
    pem = certificate[0]["pem"] if certificate else None
    stream = None if is_standby else await _measure_stream(connection)
    disk = await disk_space(connection)
    return CellMeasures(**measured, **archive, certificate_pem=pem, stream=stream, disk=disk)


async def _measure_stream(connection: AsyncConnection) -> StreamMeasures | None:
    """Returns None if the cell is not streamed. Not for a standby."""
    found = await rows(connection, _STREAM)
    return StreamMeasures(**found[0]) if found else None


def archive_backup_age_s(measures: CellMeasures, added_at: datetime) -> float | None:
    """Since when pgBackRest has not backed the cell up. A cell without any record of it counts from when it was added.

    None if pgBackRest does not archive it.
    """
    if not measures.has_pgbackrest or measures.archive_lag_s is None:
        return None
    if measures.archive_backup_age_s is not None:
        return measures.archive_backup_age_s
    return (now() - added_at).total_seconds()


async def measure_archiving(connection: AsyncConnection[Any]) -> ArchivingMeasures:
    """Returns those of the directory, as far as every role may read them. Raises psycopg's errors."""
    async with connection.cursor(row_factory=class_row(ArchivingMeasures)) as cursor:
        await cursor.execute(_ARCHIVING)
        measured = await cursor.fetchone()
    assert measured is not None
    return measured


def disk_space_of(folder: str | os.PathLike[str]) -> DiskSpace:
    """That of a folder's disk on this machine. Raises OSError."""
    found = os.statvfs(folder)
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


async def disk_space(cell: AsyncConnection) -> DiskSpace | None:
    """That of the cell, as its admin. None if it is not known, or not lately. Raises psycopg's errors."""
    (found,) = await rows(cell, _DISK_FOLDER)
    if cell.info.host.startswith("/"):
        # Unless the socket comes from a container.
        with suppress(OSError):
            return disk_space_of(found["folder"])
    if not found["may_read"]:
        return None
    try:
        (file,) = await rows(cell, _DISK_FIGURE)
    except psycopg.Error:
        if cell.broken:
            raise
        # PostgreSQL can't read it.
        return None
    figures = _FIGURES.match(file["text"] or "")
    if figures is None or abs(file["age_s"]) > DISK_MAX_AGE_S:
        return None
    return DiskSpace(int(figures[1]), int(figures[2]))
