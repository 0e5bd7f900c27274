"""Measures what has to be watched on a cell over months: transaction ids, replication, archiving, its certificate.

    async with watching(conninfo, admin_role) as connection:
        print(await measure(connection))

`doctor` and the control plane's metrics use it. It takes two short queries of PostgreSQL's own views, a third one if
the cell archives its WAL, and reads no tenant's objects.
"""

from dataclasses import dataclass
from datetime import datetime

from psycopg import AsyncConnection

from plainsql_server.core.clock import now
from plainsql_server.engine.admin.activity import rows

_MEASURES = """
    SELECT (SELECT max(age(datfrozenxid)) FROM pg_database) AS transaction_id_age,
           (SELECT max(mxid_age(datminmxid)) FROM pg_database) AS multixact_id_age,
           current_setting('data_directory') AS data_directory,
           current_setting('archive_mode') <> 'off' AS is_archiving,
           current_setting('archive_mode') <> 'off' AND current_setting('archive_command') LIKE '%pgbackrest%'
               AS has_pgbackrest,
           (SELECT coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false)
            FROM pg_stat_archiver) AS is_archiving_failing,
           (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming') AS standbys,
           CASE WHEN pg_is_in_recovery() THEN NULL ELSE (
               SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)) FROM pg_stat_replication
               WHERE state = 'streaming')::bigint END AS behind_bytes,
           pg_is_in_recovery() AS is_standby
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
           CASE WHEN last_failed_time > coalesce(last_archived_time, '-infinity')
                THEN last_failed_wal END AS failed_wal,
           record.is_ours AS has_archive_backup, greatest(0, record.age_s) AS archive_backup_age_s
    FROM settings, waiting, record, pg_stat_archiver
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


@dataclass(frozen=True, slots=True)
class CellMeasures:
    """The measures of one cell."""

    # How many transactions ago the oldest id that is still in use was given. PostgreSQL stops at two billion.
    transaction_id_age: int
    multixact_id_age: int
    data_directory: str
    is_archiving: bool
    # Whether the last attempt to archive a WAL file failed.
    is_archiving_failing: bool
    # Standbys that receive WAL, and how far the last of them is behind. None: there is none.
    standbys: int
    behind_bytes: int | None
    # The server's certificate; None if there is no TLS, or the admin may not read it.
    certificate_pem: str | None
    # Since when, at most, something is in the WAL that is not archived; 0 if all is. None: it is not to be archived.
    archive_lag_s: float | None = None
    # How many closed files of the WAL wait, and the one that could not be archived, if the last attempt failed.
    files_to_archive: int = 0
    failed_wal: str | None = None
    # Whether pgBackRest archives it, so that a restore can be rehearsed.
    has_pgbackrest: bool = False
    # Since its last backup, if it has a record of one. Otherwise, since when it has none; None: it never had a record.
    has_archive_backup: bool = False
    archive_backup_age_s: float | None = None


async def measure(connection: AsyncConnection) -> CellMeasures:
    """Returns the measures. Raises psycopg's errors, which `activity.watching` converts to the service's."""
    (measured,) = await rows(connection, _MEASURES)
    is_standby = measured.pop("is_standby")
    (archive,) = await rows(connection, _ARCHIVE) if measured["is_archiving"] and not is_standby else [{}]
    certificate = await rows(connection, _CERTIFICATE)
    return CellMeasures(**measured, **archive, certificate_pem=certificate[0]["pem"] if certificate else None)


def archive_backup_age_s(measures: CellMeasures, added_at: datetime) -> float | None:
    """Since when pgBackRest has not backed the cell up. A cell without any record of it counts from when it was added.

    None if pgBackRest does not archive it.
    """
    if not measures.has_pgbackrest or measures.archive_lag_s is None:
        return None
    if measures.archive_backup_age_s is not None:
        return measures.archive_backup_age_s
    return (now() - added_at).total_seconds()
