#!/bin/sh
# Runs nginx, and reloads it when the alias's configuration has changed.
set -eu
configuration=/etc/plainsql/alias/plainsql-alias.conf
pid=
ended=
# Requests that are running end first.
trap '[ -z "$pid" ] || kill -QUIT "$pid" || true; ended=1' TERM INT QUIT
# New certificates are read.
trap '[ -z "$pid" ] || kill -HUP "$pid" || true' HUP

pause() {
    sleep 0.5 &
    wait $! || true
}

until [ -e "$configuration" ] || [ "$ended" ]; do pause; done
[ -z "$ended" ] || exit 0
seen=$(cksum <"$configuration")
nginx -c /etc/plainsql/nginx.conf &
pid=$!
while kill -0 "$pid" 2>/dev/null; do
    pause
    now=$(cksum <"$configuration")
    if [ "$now" != "$seen" ] && [ -z "$ended" ]; then
        kill -HUP "$pid"
        seen=$now
    fi
done
wait "$pid"
