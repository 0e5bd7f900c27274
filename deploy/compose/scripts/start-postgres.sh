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
exec postgres -c "config_file=$settings/conf.d/plainsql.conf" -c "hba_file=$settings/pg_hba.conf" \
    -c "ident_file=$settings/pg_ident.conf"
