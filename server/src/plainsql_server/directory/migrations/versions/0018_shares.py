"""Divide the limits among the processes that run, and count requests without Redis.

`join_processes` and `leave_processes` stay, for planes of the version before, which run until they are restarted. Their
rows have no share, and are counted.
"""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# See the notes in 0016.
_DEFINER = "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp"

# `share` is a part of WHOLE in `core/share.py`, of the limits of the process' plane. `number` is that of its last
# renewal. `pid_space` says where `pid` means this process.
_PROCESSES = """
    ALTER TABLE data_processes
        ADD COLUMN plane text NOT NULL DEFAULT 'data' CHECK (plane IN ('data', 'control')),
        ADD COLUMN pid_space text,
        ADD COLUMN number bigint NOT NULL DEFAULT 0,
        ADD COLUMN share integer NOT NULL DEFAULT 0 CHECK (share BETWEEN 0 AND 232792560);
"""

# The permits granted to an organization in a slot of its window (`limits/window.py`). A row without effect is deleted
# after `ends_at`, by the next request of the organization or the control plane's upkeep. No reference to organizations:
# it would lock their rows, and what a purge leaves is gone in a minute.
_PERMITS = """
    CREATE TABLE permits (
        organization_id text NOT NULL CHECK (length(organization_id) <= 100),
        slot bigint NOT NULL,
        permits bigint NOT NULL CHECK (permits >= 0),
        ends_at timestamptz NOT NULL,
        PRIMARY KEY (organization_id, slot)
    );
    CREATE INDEX permits_by_end ON permits (ends_at);
"""

# A row that expired stays for as long as requests count that its process let through.
_JOIN = f"""
    CREATE OR REPLACE FUNCTION join_processes(id text, host text, pid integer, address text, is_new boolean)
    RETURNS void {_DEFINER} AS $$
    BEGIN
        IF NOT coalesce(id ~ '^proc_[0-9a-f]{{32}}$' AND length(host) BETWEEN 1 AND 255 AND pid > 0, false)
           OR length(address) > 300 OR (SELECT count(*) FROM public.data_processes) > 100000 THEN
            RAISE invalid_parameter_value USING MESSAGE = 'not a process';
        END IF;
        INSERT INTO public.data_processes AS listed (id, host, pid, address)
        VALUES (join_processes.id, join_processes.host, join_processes.pid, join_processes.address)
        ON CONFLICT ON CONSTRAINT data_processes_pkey DO UPDATE SET seen_at = now();
        IF is_new THEN
            UPDATE public.data_processes d SET address = NULL
            WHERE d.address = join_processes.address AND d.id <> join_processes.id;
        END IF;
    END $$;
"""

# `directory/sharing/processes.py` describes the rules. The intervals are UNSEEN_S and FORGOTTEN_S, the number is WHOLE.
#
# The sum of the shares is over all rows, not over those that have not expired: what expired is set to 0 under the lock
# of its row, which its process needs for a renewal. So a process that is late either renews its row first, or finds
# what it lost. The order of locks is the same for all: the own row, then the shares; nobody waits for the row of
# another one. They are held until the end of this one statement.
_RENEW = f"""
    CREATE FUNCTION renew_process(
        id text, host text, pid integer, pid_space text, plane text, address text, number bigint, held integer,
        dead text[], OUT share integer, OUT target integer, OUT processes integer, OUT is_first boolean
    ) {_DEFINER} AS $$
    DECLARE
        whole CONSTANT integer := 232792560;
        own public.data_processes;
        others bigint;
        is_new boolean;
        is_back boolean;
        known bigint;
    BEGIN
        IF NOT coalesce(id ~ '^proc_[0-9a-f]{{32}}$' AND length(host) BETWEEN 1 AND 255 AND pid > 0, false)
           OR length(address) > 300 OR length(pid_space) > 300 OR plane NOT IN ('data', 'control')
           OR (SELECT count(*) FROM public.data_processes) > 100000 THEN
            RAISE invalid_parameter_value USING MESSAGE = 'not a process';
        END IF;
        INSERT INTO public.data_processes (id, host, pid, pid_space, plane)
        VALUES (renew_process.id, renew_process.host, renew_process.pid, renew_process.pid_space, renew_process.plane)
        ON CONFLICT ON CONSTRAINT data_processes_pkey DO NOTHING;
        is_new := FOUND;
        SELECT d.* INTO own FROM public.data_processes d WHERE d.id = renew_process.id FOR UPDATE;
        IF NOT FOUND OR own.number >= renew_process.number THEN
            RAISE serialization_failure USING MESSAGE = 'the row was deleted, or a later renewal was faster';
        END IF;

        IF own.plane <> renew_process.plane THEN
            RAISE invalid_parameter_value USING MESSAGE = 'a process of the other plane';
        END IF;
        is_back := own.seen_at <= now() - interval '15 seconds';

        -- Rows that are no longer renewed. A row that is locked is being renewed.
        UPDATE public.data_processes d
        SET share = 0, address = NULL, seen_at = least(d.seen_at, now() - interval '15 seconds')
        WHERE d.id IN (
            SELECT o.id FROM public.data_processes o
            WHERE o.id <> renew_process.id AND (o.share > 0 OR o.address IS NOT NULL OR o.id = ANY(dead))
              AND (o.seen_at <= now() - interval '15 seconds'
                   OR o.id = ANY(dead) AND o.pid_space = renew_process.pid_space)
            FOR UPDATE SKIP LOCKED);
        DELETE FROM public.data_processes d
        WHERE d.id IN (
            SELECT o.id FROM public.data_processes o
            WHERE o.id <> renew_process.id AND o.seen_at <= now() - interval '77 seconds'
            FOR UPDATE SKIP LOCKED);
        -- Of a process that was killed, and whose port this one has now. That says nothing of its share: the address
        -- may be wrong.
        IF is_new AND renew_process.address IS NOT NULL THEN
            UPDATE public.data_processes d SET address = NULL
            WHERE d.id IN (
                SELECT o.id FROM public.data_processes o
                WHERE o.id <> renew_process.id AND o.address = renew_process.address FOR UPDATE SKIP LOCKED);
        END IF;

        SELECT 1 + count(*) FILTER (WHERE d.seen_at > now() - interval '15 seconds'), count(*) = 0,
               1 + count(*) FILTER (WHERE d.seen_at > now() - interval '77 seconds')
        INTO processes, is_first, known
        FROM public.data_processes d WHERE d.plane = renew_process.plane AND d.id <> renew_process.id;
        -- After an outage the first one would take everything, because the others have expired, too.
        target := whole / CASE WHEN is_back THEN known ELSE processes END;
        share := least(held, own.share);
        IF share < target THEN
            PERFORM pg_advisory_xact_lock(6003001);
            SELECT coalesce(sum(d.share), 0) INTO others FROM public.data_processes d
            WHERE d.plane = renew_process.plane AND d.id <> renew_process.id;
            share := greatest(share, least(target, whole - others));
        END IF;
        UPDATE public.data_processes d
        SET seen_at = now(), number = renew_process.number, address = renew_process.address,
            share = renew_process.share
        WHERE d.id = renew_process.id;
        IF is_new OR is_back THEN
            -- The others give up some of theirs, or come back, too.
            PERFORM pg_notify('plainsql_processes', '');
        END IF;
    END $$;
"""

_LEAVE = f"""
    CREATE FUNCTION leave_process(id text, pid_space text) RETURNS void {_DEFINER} AS $$
    BEGIN
        UPDATE public.data_processes d
        SET share = 0, address = NULL, seen_at = now() - interval '15 seconds', number = d.number + 1000000
        WHERE d.id = leave_process.id AND d.pid_space IS NOT DISTINCT FROM leave_process.pid_space;
        PERFORM pg_notify('plainsql_processes', '');
    END $$;
"""

# What the script of `limits/shared.py` does in Redis, for several organizations. They are locked in one order, until
# the end of this one statement. `returned_for` has the place of the organization in `organization_ids`. The window is
# that of `limits/window.py` for a minute; it is the same for all, or they would not see each other's slots.
_GRANT = f"""
    CREATE FUNCTION grant_permits(
        organization_ids text[], limits integer[], needed integer[], wanted integer[], given integer[],
        returned_for integer[], returned_slots bigint[], returned integer[],
        OUT granted integer[], OUT remaining integer[], OUT granted_in bigint[], OUT back_ms integer[]
    ) {_DEFINER} AS $$
    DECLARE
        slot_ms CONSTANT integer := 600;
        counted_slots CONSTANT integer := 102;
        now_ms bigint;
        own_slot bigint;
    BEGIN
        IF NOT coalesce(cardinality(organization_ids) BETWEEN 1 AND 1000, false)
           OR NOT coalesce(cardinality(organization_ids) = ALL (ARRAY[
               cardinality(limits), cardinality(needed), cardinality(wanted), cardinality(given),
               (SELECT count(DISTINCT o) FROM unnest(organization_ids) AS o WHERE length(o) <= 100)]), false)
           OR NOT coalesce(cardinality(returned) <= 200000 AND cardinality(returned) = ALL (ARRAY[
               cardinality(returned_for), cardinality(returned_slots)]), false)
           OR EXISTS (SELECT FROM unnest(limits || needed || wanted || given || returned) AS value
                      WHERE value IS NULL OR value NOT BETWEEN 0 AND 100000000) THEN
            RAISE invalid_parameter_value USING MESSAGE = 'not a request for permits';
        END IF;
        PERFORM pg_advisory_xact_lock(6003002, locks.key)
        FROM (SELECT DISTINCT hashtext(id) AS key FROM unnest(organization_ids) AS id ORDER BY 1) AS locks;
        now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
        own_slot := now_ms / slot_ms;
        DELETE FROM public.permits p
        WHERE p.organization_id = ANY (organization_ids) AND p.slot < own_slot - counted_slots;
        IF cardinality(returned) > 0 THEN
            UPDATE public.permits p SET permits = greatest(0, p.permits - r.permits)
            FROM (
                SELECT organization_ids[b.place] AS organization_id, b.slot, sum(b.permits) AS permits
                FROM unnest(returned_for, returned_slots, returned) AS b (place, slot, permits)
                GROUP BY 1, 2) AS r
            WHERE p.organization_id = r.organization_id AND p.slot = r.slot;
        END IF;
        WITH asked AS (
            SELECT * FROM unnest(organization_ids, limits, needed, wanted, given)
                WITH ORDINALITY AS a (organization_id, most, needed, wanted, given, place)
        ), counted AS (
            SELECT a.*, p.oldest, greatest(0, a.most - a.given - p.used)::integer AS allowed
            FROM asked AS a CROSS JOIN LATERAL (
                -- A slot from the far future was written before the clock was set back.
                SELECT coalesce(sum(o.permits), 0) AS used, min(o.slot) AS oldest
                FROM public.permits o
                WHERE o.organization_id = a.organization_id AND o.permits > 0
                  AND o.slot > own_slot - counted_slots AND o.slot <= own_slot + counted_slots) AS p
        ), decided AS (
            SELECT c.*, least(c.allowed, c.needed + least(c.wanted, greatest(0, c.allowed - c.needed) / 4)) AS more
            FROM counted AS c
        ), written AS (
            INSERT INTO public.permits AS p
            SELECT d.organization_id, own_slot, d.more + d.given,
                   to_timestamp((own_slot + counted_slots + 1) * slot_ms / 1000.0)
            FROM decided AS d WHERE d.more + d.given > 0
            ON CONFLICT ON CONSTRAINT permits_pkey DO UPDATE SET permits = p.permits + excluded.permits
        )
        SELECT array_agg(d.more ORDER BY d.place), array_agg(d.allowed - d.more ORDER BY d.place),
               array_agg(own_slot ORDER BY d.place),
               array_agg(coalesce((coalesce(d.oldest, CASE WHEN d.more + d.given > 0 THEN own_slot END)
                                   + counted_slots) * slot_ms - now_ms, -1)::integer ORDER BY d.place)
        INTO granted, remaining, granted_in, back_ms
        FROM decided AS d;
    END $$;
"""


# In several calls, so that each is short.
_DELETE = f"""
    CREATE FUNCTION delete_old_permits() RETURNS bigint {_DEFINER} AS $$
    DECLARE
        deleted bigint;
    BEGIN
        DELETE FROM public.permits p
        WHERE (p.organization_id, p.slot) IN (
            SELECT o.organization_id, o.slot FROM public.permits o WHERE o.ends_at < now() ORDER BY o.ends_at LIMIT 5000
            FOR UPDATE SKIP LOCKED);
        GET DIAGNOSTICS deleted = ROW_COUNT;
        RETURN deleted;
    END $$;
"""


def upgrade() -> None:
    for statements in (_PROCESSES, _PERMITS, _JOIN, _RENEW, _LEAVE, _GRANT, _DELETE):
        op.execute(statements)
