"""Add the functions through which planes with few rights write."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# They run as their owner, so they check what they are given: who has stolen a data plane's login can call them. Each
# names the tables' schema, and looks up nothing in schemas that others can write to.
_DEFINER = "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp"

# Rows of databases that are gone are left out, so that they don't keep the others from being counted.
_NOTE_USAGE = f"""
    CREATE FUNCTION note_usage(day date, organization_ids text[], database_ids text[],
                               requests bigint[], rows bigint[], engine_us bigint[], bytes bigint[])
    RETURNS void {_DEFINER} AS $$
    DECLARE
        today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
    BEGIN
        IF day IS NULL OR day NOT BETWEEN today - 7 AND today + 1 THEN
            RAISE invalid_parameter_value USING MESSAGE = format('usage of %s is noted on %s', day, today);
        END IF;
        IF EXISTS (SELECT FROM unnest(requests || rows || engine_us || bytes) AS number
                   WHERE number IS NULL OR number NOT BETWEEN 0 AND 1000000000000000) THEN
            RAISE invalid_parameter_value USING MESSAGE = 'usage out of range';
        END IF;
        INSERT INTO public.usage (organization_id, day, database_id, requests, rows, engine_us, bytes)
        SELECT used.organization_id, note_usage.day, used.database_id,
               sum(used.requests), sum(used.rows), sum(used.engine_us), sum(used.bytes)
        FROM unnest(note_usage.organization_ids, note_usage.database_ids, note_usage.requests, note_usage.rows,
                    note_usage.engine_us, note_usage.bytes)
             AS used (organization_id, database_id, requests, rows, engine_us, bytes)
        JOIN public.databases d ON d.id = used.database_id AND d.organization_id = used.organization_id
        GROUP BY used.organization_id, used.database_id
        ORDER BY used.organization_id, used.database_id
        ON CONFLICT ON CONSTRAINT usage_pkey DO UPDATE
        SET requests = usage.requests + excluded.requests, rows = usage.rows + excluded.rows,
            engine_us = usage.engine_us + excluded.engine_us, bytes = usage.bytes + excluded.bytes;
    END $$;
"""

# A time in the future would make a key look used for as long.
_NOTE_KEYS_USED = f"""
    CREATE FUNCTION note_keys_used(ids text[], at timestamptz) RETURNS void {_DEFINER} AS $$
    DECLARE
        used_at CONSTANT timestamptz := least(at, now());
    BEGIN
        UPDATE public.api_keys k SET last_used_at = used_at
        FROM (SELECT id FROM public.api_keys WHERE id = ANY(ids) ORDER BY id FOR NO KEY UPDATE) used
        WHERE k.id = used.id AND (k.last_used_at IS NULL OR k.last_used_at < used_at);
    END $$;
"""

_NOTE_CODE = f"""
    CREATE FUNCTION note_code(database_id text) RETURNS void {_DEFINER} AS $$
    BEGIN
        UPDATE public.databases d SET plain = false WHERE d.id = database_id AND d.plain;
    END $$;
"""

# The entry's id begins with the time in milliseconds, as all ids do.
_NOTE_RESET = f"""
    CREATE FUNCTION note_reset(organization_id text, database_id text, actor_kind text, actor_id text, request_id text)
    RETURNS void {_DEFINER} AS $$
    BEGIN
        IF NOT EXISTS (SELECT FROM public.databases d
                       WHERE d.id = database_id AND d.organization_id = note_reset.organization_id)
           OR NOT (CASE actor_kind
               WHEN 'key' THEN EXISTS (
                   SELECT FROM public.api_keys k
                   WHERE k.id = actor_id AND k.organization_id = note_reset.organization_id)
               WHEN 'session' THEN EXISTS (
                   SELECT FROM public.sessions s
                   WHERE s.id = actor_id AND s.organization_id = note_reset.organization_id)
               ELSE false END)
           OR length(request_id) > 100 THEN
            RAISE invalid_parameter_value USING MESSAGE = 'no such database, key or session in this organization';
        END IF;
        INSERT INTO public.audit (id, organization_id, actor_kind, actor_id, action, target_id, details, request_id)
        VALUES ('aud_' || lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
                       || substr(replace(gen_random_uuid()::text, '-', ''), 13),
                organization_id, actor_kind, actor_id, 'database.reset', database_id, '{{}}', request_id);
    END $$;
"""

# `directory/processes.py` describes the list. The interval is its UNSEEN_S.
_PROCESSES = f"""
    CREATE FUNCTION join_processes(id text, host text, pid integer, address text, is_new boolean)
    RETURNS void {_DEFINER} AS $$
    BEGIN
        IF NOT coalesce(id ~ '^proc_[0-9a-f]{{32}}$' AND length(host) BETWEEN 1 AND 255 AND pid > 0, false)
           OR length(address) > 300 OR (SELECT count(*) FROM public.data_processes) > 100000 THEN
            RAISE invalid_parameter_value USING MESSAGE = 'not a process';
        END IF;
        INSERT INTO public.data_processes AS listed (id, host, pid, address)
        VALUES (join_processes.id, join_processes.host, join_processes.pid, join_processes.address)
        ON CONFLICT ON CONSTRAINT data_processes_pkey DO UPDATE SET seen_at = now();
        -- Of a process that was killed, and whose port this one has now. Last, so that the port stays listed.
        IF is_new THEN
            DELETE FROM public.data_processes d WHERE d.address = join_processes.address AND d.id <> join_processes.id;
        END IF;
        DELETE FROM public.data_processes d WHERE d.seen_at <= now() - interval '15 seconds';
    END $$;
    CREATE FUNCTION leave_processes(id text) RETURNS void {_DEFINER} AS $$
    BEGIN
        DELETE FROM public.data_processes d WHERE d.id = leave_processes.id;
    END $$;
"""

# The interval is KEPT in `directory/audit.py`. Ids begin with the time, and are indexed.
_DELETE_OLD_AUDIT = f"""
    CREATE FUNCTION delete_old_audit(at_most integer) RETURNS bigint {_DEFINER} AS $$
    DECLARE
        kept CONSTANT text := 'aud_' || lpad(to_hex((extract(epoch FROM now() - interval '396 days') * 1000)::bigint),
                                             12, '0');
        deleted bigint;
    BEGIN
        DELETE FROM public.audit a
        WHERE a.id IN (SELECT o.id FROM public.audit o WHERE o.id < kept ORDER BY o.id LIMIT at_most);
        GET DIAGNOSTICS deleted = ROW_COUNT;
        RETURN deleted;
    END $$;
"""

# For a purge. What was done to an organization that exists can't be hidden with it.
_CLEAR_AUDIT = f"""
    CREATE FUNCTION clear_audit(organization_id text) RETURNS void {_DEFINER} AS $$
    BEGIN
        IF EXISTS (SELECT FROM public.organizations o WHERE o.id = clear_audit.organization_id) THEN
            RAISE object_in_use USING MESSAGE = 'the organization exists';
        END IF;
        UPDATE public.audit a SET details = '{{}}' WHERE a.organization_id = clear_audit.organization_id;
    END $$;
"""


def upgrade() -> None:
    for statements in (
        _NOTE_USAGE, _NOTE_KEYS_USED, _NOTE_CODE, _NOTE_RESET, _PROCESSES, _DELETE_OLD_AUDIT, _CLEAR_AUDIT,
    ):  # fmt: skip
        op.execute(statements)
