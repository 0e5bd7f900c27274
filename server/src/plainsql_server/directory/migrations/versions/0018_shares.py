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
# after `ends_at`. No reference to organizations: it would lock their rows, and what a purge leaves is gone in a minute.
_PERMITS = """
    CREATE TABLE permits (
        organization_id text NOT NULL CHECK (length(organization_id) <= 100),
        slot bigint NOT NULL,
        permits integer NOT NULL CHECK (permits >= 0),
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

# `directory/processes.py` describes the rules. The intervals are UNSEEN_S and FORGOTTEN_S, the number is WHOLE.
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

        -- What nobody renews any more. A row that is locked is being renewed.
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
        DELETE FROM public.permits p
        WHERE (p.organization_id, p.slot) IN (
            SELECT o.organization_id, o.slot FROM public.permits o WHERE o.ends_at < now() LIMIT 1000
            FOR UPDATE SKIP LOCKED);
        -- Of a process that was killed, and whose port this one has now. That says nothing of its share: the address
        -- may be wrong.
        IF is_new AND renew_process.address IS NOT NULL THEN
            UPDATE public.data_processes d SET address = NULL
            WHERE d.id IN (
                SELECT o.id FROM public.data_processes o
                WHERE o.id <> renew_process.id AND o.address = renew_process.address FOR UPDATE SKIP LOCKED);
        END IF;

        SELECT 1 + count(*) FILTER (WHERE d.seen_at > now() - interval '15 seconds'), count(*) = 0
        INTO processes, is_first
        FROM public.data_processes d WHERE d.plane = renew_process.plane AND d.id <> renew_process.id;
        target := whole / processes;
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
        IF is_new THEN
            -- The others give up some of theirs.
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
# the end of this one statement. `returned_for` has the place of the organization in `organization_ids`.
_GRANT = f"""
    CREATE FUNCTION grant_permits(
        slot_ms integer, counted_slots integer, organization_ids text[], limits integer[], needed integer[],
        wanted integer[], given integer[], returned_for integer[], returned_slots bigint[], returned integer[],
        OUT granted integer[], OUT remaining integer[], OUT granted_in bigint[], OUT back_ms integer[]
    ) {_DEFINER} AS $$
    DECLARE
        ask record;
        now_ms bigint;
        own_slot bigint;
        used bigint;
        oldest bigint;
        allowed bigint;
        more integer;
    BEGIN
        IF NOT coalesce(slot_ms BETWEEN 1 AND 600000 AND counted_slots BETWEEN 1 AND 1000, false)
           OR cardinality(organization_ids) > 1000 OR NOT cardinality(organization_ids) = ALL (ARRAY[
               cardinality(limits), cardinality(needed), cardinality(wanted), cardinality(given)])
           OR cardinality(returned) > 200000
           OR NOT cardinality(returned) = ALL (ARRAY[cardinality(returned_for), cardinality(returned_slots)])
           OR EXISTS (SELECT FROM unnest(limits || needed || wanted || given || returned) AS value
                      WHERE value IS NULL OR value NOT BETWEEN 0 AND 100000000)
           OR EXISTS (SELECT FROM unnest(organization_ids) AS value WHERE value IS NULL OR length(value) > 100) THEN
            RAISE invalid_parameter_value USING MESSAGE = 'not a request for permits';
        END IF;
        granted := array_fill(0, ARRAY[cardinality(organization_ids)]);
        remaining := granted;
        granted_in := granted;
        back_ms := granted;
        FOR ask IN
            SELECT a.*
            FROM unnest(organization_ids, limits, needed, wanted, given)
                 WITH ORDINALITY AS a (organization_id, allowed, needed, wanted, given, place)
            ORDER BY hashtext(a.organization_id), a.place
        LOOP
            PERFORM pg_advisory_xact_lock(6003002, hashtext(ask.organization_id));
            now_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
            own_slot := now_ms / slot_ms;
            IF cardinality(returned) > 0 THEN
                UPDATE public.permits p SET permits = greatest(0, p.permits - r.permits)
                FROM unnest(returned_for, returned_slots, returned) AS r (place, slot, permits)
                WHERE r.place = ask.place AND p.organization_id = ask.organization_id AND p.slot = r.slot;
            END IF;
            -- A slot from the far future was written before the clock was set back.
            SELECT coalesce(sum(p.permits), 0), min(p.slot) INTO used, oldest
            FROM public.permits p
            WHERE p.organization_id = ask.organization_id AND p.permits > 0
              AND p.slot > own_slot - counted_slots AND p.slot <= own_slot + counted_slots;
            allowed := greatest(0, ask.allowed - used - ask.given);
            more := least(allowed, ask.needed + least(ask.wanted, greatest(0, allowed - ask.needed) / 4));
            IF more + ask.given > 0 THEN
                INSERT INTO public.permits AS p
                VALUES (ask.organization_id, own_slot, more + ask.given,
                        to_timestamp((own_slot + counted_slots + 1) * slot_ms / 1000.0))
                ON CONFLICT ON CONSTRAINT permits_pkey DO UPDATE SET permits = p.permits + excluded.permits;
                oldest := coalesce(oldest, own_slot);
            END IF;
            granted[ask.place] := more;
            remaining[ask.place] := allowed - more;
            granted_in[ask.place] := own_slot;
            back_ms[ask.place] := coalesce((oldest + counted_slots) * slot_ms - now_ms, -1);
        END LOOP;
    END $$;
"""


def upgrade() -> None:
    for statements in (_PROCESSES, _PERMITS, _JOIN, _RENEW, _LEAVE, _GRANT):
        op.execute(statements)
