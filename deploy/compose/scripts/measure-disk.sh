#!/bin/sh
# Writes what is free on the cell's disk, for the control plane, as `cell guard` does elsewhere: branches need room.
set -u
: "${PGDATA:?}"
while :; do
    if [ -e "$PGDATA/postmaster.pid" ]; then
        df --block-size=1 --output=avail,size "$PGDATA" | awk 'NR == 2 { print $1, $2 }' >"$PGDATA/plainsql_disk.new" &&
            mv "$PGDATA/plainsql_disk.new" "$PGDATA/plainsql_disk"
    fi
    sleep 10
done
