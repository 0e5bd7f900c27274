"""Let the list of processes divide the limits: each row has the share that its process holds.

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

# `share` is a part of WHOLE in `core/share.py`, of the limits of the process' plane. `used` has what the process
# granted to each organization in the last minute, and how much others have to leave out: {"org_…": [15, 0]}. A process
# that left or died is kept for that, without its share. `pid_space` says where `pid` means this process.
_COLUMNS = """
    ALTER TABLE data_processes
        ADD COLUMN plane text NOT NULL DEFAULT 'data' CHECK (plane IN ('data', 'control')),
        ADD COLUMN pid_space text,
        ADD COLUMN share integer NOT NULL DEFAULT 0 CHECK (share BETWEEN 0 AND 232792560),
        ADD COLUMN used jsonb NOT NULL DEFAULT '{}',
        ADD COLUMN left_at timestamptz;
"""

# `directory/processes.py` describes the rules. The intervals are UNSEEN_S and REMEMBERED_S, the number is WHOLE. Under
# the lock, renewals come one by one, so the shares of a plane never add up to more than WHOLE. The time is read
# when it is held: a row that was written before another one must not be newer.
_RENEW = f"""
    CREATE FUNCTION renew_process(
        id text, host text, pid integer, pid_space text, plane text, address text, held integer, used jsonb,
        dead text[],
        OUT share integer, OUT target integer, OUT processes integer, OUT others_used jsonb
    ) {_DEFINER} AS $$
    DECLARE
        whole CONSTANT integer := 232792560;
        at timestamptz;
        before integer;
        taken bigint;
        gone integer;
    BEGIN
        IF NOT coalesce(id ~ '^proc_[0-9a-f]{{32}}$' AND length(host) BETWEEN 1 AND 255 AND pid > 0, false)
           OR length(address) > 300 OR length(pid_space) > 300 OR plane NOT IN ('data', 'control')
           OR jsonb_typeof(used) <> 'object' OR pg_column_size(used) > 4000000
           OR (SELECT count(*) FROM public.data_processes) > 100000 THEN
            RAISE invalid_parameter_value USING MESSAGE = 'not a process';
        END IF;
        PERFORM pg_advisory_xact_lock(6003001);
        at := clock_timestamp();
        UPDATE public.data_processes d SET left_at = at, share = 0, address = NULL
        WHERE d.left_at IS NULL AND d.id <> renew_process.id
          AND (d.id = ANY(dead) OR d.seen_at <= at - interval '15 seconds');
        GET DIAGNOSTICS gone = ROW_COUNT;
        -- Of a process that was killed, and whose port this one has now. That it has no share is known only by its pid
        -- or when it expires: a wrong address is no proof.
        UPDATE public.data_processes d SET address = NULL
        WHERE d.address = renew_process.address AND d.id <> renew_process.id;
        DELETE FROM public.data_processes d WHERE d.left_at <= at - interval '62 seconds';

        SELECT d.share INTO before FROM public.data_processes d
        WHERE d.id = renew_process.id AND d.left_at IS NULL AND d.seen_at > at - interval '15 seconds';
        SELECT count(*) + 1, coalesce(sum(d.share), 0) INTO processes, taken FROM public.data_processes d
        WHERE d.plane = renew_process.plane AND d.left_at IS NULL AND d.id <> renew_process.id;
        target := whole / processes;
        share := least(whole - taken, greatest(target, least(held, coalesce(before, 0))));

        INSERT INTO public.data_processes AS listed
            (id, host, pid, pid_space, plane, address, seen_at, share, used)
        VALUES (renew_process.id, renew_process.host, renew_process.pid, renew_process.pid_space, renew_process.plane,
                renew_process.address, at, renew_process.share, renew_process.used)
        ON CONFLICT ON CONSTRAINT data_processes_pkey DO UPDATE
        SET seen_at = at, left_at = NULL, address = excluded.address, share = excluded.share, used = excluded.used;

        SELECT jsonb_object_agg(each.key, each.number) INTO others_used FROM (
            SELECT u.key, sum((u.value ->> (CASE WHEN d.left_at IS NULL THEN 1 ELSE 0 END))::bigint) AS number
            FROM public.data_processes d, jsonb_each(d.used) u
            WHERE d.plane = renew_process.plane AND d.id <> renew_process.id AND d.used <> '{{}}'
            GROUP BY u.key
        ) each WHERE each.number > 0;
        IF before IS NULL OR gone > 0 THEN
            PERFORM pg_notify('plainsql_processes', 'number');
        ELSIF share < before THEN
            PERFORM pg_notify('plainsql_processes', 'share');
        END IF;
    END $$;
"""

_LEAVE = f"""
    CREATE FUNCTION leave_process(id text, used jsonb) RETURNS void {_DEFINER} AS $$
    BEGIN
        IF jsonb_typeof(used) <> 'object' OR pg_column_size(used) > 4000000 THEN
            RAISE invalid_parameter_value USING MESSAGE = 'not what a process used';
        END IF;
        PERFORM pg_advisory_xact_lock(6003001);
        UPDATE public.data_processes d
        SET left_at = clock_timestamp(), share = 0, address = NULL, used = leave_process.used
        WHERE d.id = leave_process.id AND d.left_at IS NULL;
        PERFORM pg_notify('plainsql_processes', 'number');
    END $$;
"""


def upgrade() -> None:
    for statements in (_COLUMNS, _RENEW, _LEAVE):
        op.execute(statements)
