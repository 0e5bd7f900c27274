"""Measures what has to be watched on a cell over months: transaction ids, replication, archiving, its certificate.

    async with watching(conninfo, admin_role) as connection:
        print(await measure(connection))

`doctor` and the control plane's metrics use it. It takes two short queries of PostgreSQL's own views and reads no
tenant's objects.
"""

from dataclasses import dataclass

from psycopg import AsyncConnection

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
           CASE WHEN pg_is_in_recovery() OR current_setting('archive_mode') = 'off' THEN NULL ELSE (
               SELECT CASE WHEN pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') > archived.until + 8192
                      THEN extract(epoch FROM now() - coalesce(last_archived_time, pg_postmaster_start_time()))
                      ELSE 0 END
               FROM pg_stat_archiver, LATERAL (
                   SELECT CASE WHEN last_archived_wal ~ '^[0-9A-F]{24}' THEN
                       ('x' || substr(last_archived_wal, 9, 8))::bit(32)::bigint * 4294967296
                       + (('x' || substr(last_archived_wal, 17, 8))::bit(32)::bigint + 1)
                       * (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size')
                   ELSE 0 END AS until) AS archived)::float8 END AS archive_lag_s
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
    # For how long the WAL that was written last has not been archived; 0 if all is. None: it is not to be archived.
    archive_lag_s: float | None = None
    # Whether pgBackRest archives it, so that a restore can be rehearsed.
    has_pgbackrest: bool = False


async def measure(connection: AsyncConnection) -> CellMeasures:
    """Returns the measures. Raises psycopg's errors, which `activity.watching` converts to the service's."""
    (measured,) = await rows(connection, _MEASURES)
    certificate = await rows(connection, _CERTIFICATE)
    return CellMeasures(**measured, certificate_pem=certificate[0]["pem"] if certificate else None)
