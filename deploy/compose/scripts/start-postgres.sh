#!/bin/sh
# Starts PostgreSQL, in a new cluster if there is none yet. The official image's own script is not used: it needs a
# password, and there is none here.
#   start-postgres.sh SUPERUSER [SQL-FILE for a new cluster]
set -eu
: "${PGDATA:?}"
if [ ! -e "$PGDATA" ]; then
    # Under another name until it is complete.
    rm -rf "$PGDATA.new"
    initdb --pgdata "$PGDATA.new" --username "$1" --auth reject --encoding UTF8 --locale C.UTF-8 --data-checksums
    [ $# -lt 2 ] || postgres --single -D "$PGDATA.new" postgres <"$2" >/dev/null
    mv "$PGDATA.new" "$PGDATA"
fi
settings=/etc/plainsql/settings
if [ -e "$settings/memory.conf" ]; then
    # A customer's statement that needs more memory fails alone. The figure is that of `cell files`, for systemd, or half
    # of the cell's memory, if that is less: PostgreSQL restarts if one of its processes is killed.
    ulimit -d "$(awk -F '[=M]' -v gib="$PLAINSQL_CELL_MEMORY_GIB" \
        '/^LimitDATA=/ { half = gib * 512; print int($2 < half ? $2 : half) * 1024 }' "$settings/memory.conf")"
fi
# PostgreSQL takes any child of its process for its own, and restarts for all customers if one is killed. So none may run
# here when it starts.
exec postgres -c "config_file=$settings/conf.d/plainsql.conf" -c "hba_file=$settings/pg_hba.conf" \
    -c "ident_file=$settings/pg_ident.conf"
