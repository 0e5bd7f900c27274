"""Divide the limits among the processes that run: shares in the list of processes, and leases of rate-limit permits.

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
_TABLES = """
    ALTER TABLE data_processes
        ADD COLUMN plane text NOT NULL DEFAULT 'data' CHECK (plane IN ('data', 'control')),
        ADD COLUMN pid_space text,
        ADD COLUMN number bigint NOT NULL DEFAULT 0,
        ADD COLUMN share integer NOT NULL DEFAULT 0 CHECK (share BETWEEN 0 AND 232792560);
    CREATE TABLE permit_leases (
        organization_id text NOT NULL,
        process_id text NOT NULL REFERENCES data_processes ON DELETE CASCADE,
        permits integer NOT NULL CHECK (permits > 0),
        PRIMARY KEY (organization_id, process_id)
    );
    CREATE INDEX permit_leases_of_process ON permit_leases (process_id);
"""

# A row that expired stays as long as what its process granted may count.
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
# Every sum is over all rows, not over those that have not expired: what expired is set to 0, or deleted, under the lock
# of its row, which its process needs for a renewal. So a process that is late either renews its row first, or finds
# what it lost. The order of locks is the same for all: rows, then organizations by hash, then shares; nobody waits for
# the row of another one. They are held until the end of this one statement.
_RENEW = f"""
    CREATE FUNCTION renew_process(
        id text, host text, pid integer, pid_space text, plane text, address text, number bigint, held integer,
        dead text[], organization_ids text[], limits integer[], kept integer[], needed integer[], ahead boolean[],
        OUT started_at timestamptz, OUT share integer, OUT target integer, OUT processes integer,
        OUT granted integer[], OUT remaining integer[]
    ) {_DEFINER} AS $$
    DECLARE
        whole CONSTANT integer := 232792560;
        own public.data_processes;
        ask record;
        others bigint;
        mine integer;
        spare integer;
        planes_processes integer;
        is_new boolean;
    BEGIN
        IF NOT coalesce(id ~ '^proc_[0-9a-f]{{32}}$' AND length(host) BETWEEN 1 AND 255 AND pid > 0, false)
           OR length(address) > 300 OR length(pid_space) > 300 OR plane NOT IN ('data', 'control')
           OR (SELECT count(*) FROM public.data_processes) > 100000
           OR cardinality(organization_ids) > 1000 OR NOT cardinality(organization_ids) = ALL (ARRAY[
               cardinality(limits), cardinality(kept), cardinality(needed), cardinality(ahead)])
           OR EXISTS (SELECT FROM unnest(limits || kept || needed) AS value
                      WHERE value IS NULL OR value NOT BETWEEN 0 AND 1000000)
           OR EXISTS (SELECT FROM unnest(organization_ids) AS value WHERE value IS NULL OR length(value) > 100) THEN
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
        started_at := own.started_at;

        -- What nobody renews any more. A row that is locked is being renewed.
        UPDATE public.data_processes d
        SET share = 0, address = NULL, seen_at = least(d.seen_at, now() - interval '15 seconds')
        WHERE d.id IN (
            SELECT o.id FROM public.data_processes o
            WHERE o.id <> renew_process.id AND (o.share > 0 OR o.address IS NOT NULL OR o.id = ANY(dead))
              AND (o.seen_at <= now() - interval '15 seconds' OR o.id = ANY(dead))
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
        SELECT count(*), count(*) FILTER (WHERE d.plane = renew_process.plane) INTO processes, planes_processes
        FROM public.data_processes d
        WHERE d.id = renew_process.id OR d.seen_at > now() - interval '15 seconds';

        granted := array_fill(0, ARRAY[cardinality(organization_ids)]);
        remaining := granted;
        FOR ask IN
            SELECT a.organization_id, a.allowed, a.kept, a.needed, a.ahead, a.place
            FROM unnest(organization_ids, limits, renew_process.kept, renew_process.needed, renew_process.ahead)
                 WITH ORDINALITY AS a (organization_id, allowed, kept, needed, ahead, place)
            ORDER BY hashtext(a.organization_id), a.place
        LOOP
            PERFORM pg_advisory_xact_lock(6003002, hashtext(ask.organization_id));
            SELECT coalesce(sum(l.permits) FILTER (WHERE l.process_id <> renew_process.id), 0),
                   least(ask.kept, coalesce(sum(l.permits) FILTER (WHERE l.process_id = renew_process.id), 0))
            INTO others, mine FROM public.permit_leases l WHERE l.organization_id = ask.organization_id;
            spare := greatest(0, ask.allowed - others - mine);
            granted[ask.place] := least(spare, ask.needed + CASE WHEN ask.ahead
                THEN greatest(0, spare - ask.needed) / (processes + 1) ELSE 0 END);
            remaining[ask.place] := spare - granted[ask.place];
            mine := mine + granted[ask.place];
            IF mine > 0 THEN
                INSERT INTO public.permit_leases AS l VALUES (ask.organization_id, renew_process.id, mine)
                ON CONFLICT ON CONSTRAINT permit_leases_pkey DO UPDATE SET permits = excluded.permits
                WHERE l.permits <> excluded.permits;
            ELSE
                DELETE FROM public.permit_leases l
                WHERE l.organization_id = ask.organization_id AND l.process_id = renew_process.id;
            END IF;
        END LOOP;

        processes := planes_processes;
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
    END $$;
"""

# What it leased counts as long as that of a process that was last seen now.
_LEAVE = f"""
    CREATE FUNCTION leave_process(id text) RETURNS void {_DEFINER} AS $$
    BEGIN
        UPDATE public.data_processes d
        SET share = 0, address = NULL, seen_at = now() - interval '15 seconds', number = d.number + 1000000
        WHERE d.id = leave_process.id;
    END $$;
"""


def upgrade() -> None:
    for statements in (_TABLES, _JOIN, _RENEW, _LEAVE):
        op.execute(statements)
