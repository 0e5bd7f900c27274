#!/bin/sh
# Makes the certificates, keys and passwords of all services, once, the cell's settings, and the folder for backups.
# init.sh runs it in a container of the image.
set -eu
umask 077
POSTGRES=999 REDIS=999 NGINX=101 GRAFANA=472 PLAINSQL=10001

# NAME FOLDER OWNER, and what it is for.
issue() {
    name=$1 folder=$2 owner=$3
    shift 3
    plainsql-server pki issue "$name" --pki /secrets/pki --to "/secrets/$folder" --owner "$owner" "$@"
    chown "$owner:$owner" "/secrets/$folder"
}

make_certificates() {
    # What an interrupted run has left. No data depends on it: the key that seals secrets is kept, see below.
    for folder in pki cell directory data control control-tls alias follower owner operator operator-directory redis; do
        rm -rf "/secrets/${folder:?}"
    done
    plainsql-server pki init /secrets/pki
    issue cell cell "$POSTGRES" --server cell
    issue directory directory "$POSTGRES" --server directory
    issue data-server data "$PLAINSQL" --server data
    issue data data "$PLAINSQL" --client plainsql_data
    issue control-server control-tls "$PLAINSQL" --server "$PLAINSQL_HOST" --server control
    issue control control "$PLAINSQL" --client plainsql_admin
    issue alias alias "$NGINX" --server "$PLAINSQL_HOST" --server alias
    issue follower follower "$PLAINSQL" --client plainsql_data
    issue owner owner "$PLAINSQL" --client plainsql_owner
    issue operator operator "$PLAINSQL" --client plainsql_admin
    issue operator-directory operator-directory "$PLAINSQL" --client plainsql_operator
}

# OWNER FILE: writes standard input to it, for its owner only.
keep() {
    cat >"$2"
    chown "$1:$1" "$2"
    chmod 0400 "$2"
}

new_password() {
    /opt/plainsql/bin/python -c 'import secrets; print(secrets.token_urlsafe(32))'
}

make_passwords() {
    password=$(new_password)
    mkdir -p /secrets/redis
    chown "$REDIS:$REDIS" /secrets/redis
    echo "requirepass $password" | keep "$REDIS" /secrets/redis/redis.conf
    for folder in data control operator; do
        echo "redis://:$password@redis:6379/0" | keep "$PLAINSQL" "/secrets/$folder/redis.url"
    done
    mkdir -p /secrets/grafana
    chown "$GRAFANA:$GRAFANA" /secrets/grafana
    new_password | keep "$GRAFANA" /secrets/grafana/password
}

# Copies of your own certificate, for each program that uses it.
copy_own_certificate() {
    for copy in "own-alias $NGINX" "own-control $PLAINSQL"; do
        folder=/secrets/${copy% *} owner=${copy#* }
        mkdir -p "$folder"
        chown "$owner:$owner" "$folder"
        for name in server.crt server.key; do
            rm -f "$folder/$name"
            keep "$owner" "$folder/$name" <"/tls/$name"
        done
    done
}

if [ ! -e /secrets/complete ]; then
    make_certificates
    make_passwords
    # Never made again: what it has sealed would be lost.
    [ -e /secrets/secrets.keys ] || plainsql-server secrets new-key >/secrets/secrets.keys
    for folder in data control operator; do
        keep "$PLAINSQL" "/secrets/$folder/secrets.keys" </secrets/secrets.keys
    done
    # The certificate of the authority, for clients.
    cp /secrets/alias/servers.crt /secrets/ca.crt
    chmod 0644 /secrets/ca.crt
    chmod 0711 /secrets
    touch /secrets/complete
fi

[ -z "${RENEW:-}" ] || plainsql-server pki renew --all --pki /secrets/pki
[ ! -e /tls/server.key ] || copy_own_certificate

plainsql-server cell files /generated/cell --admin-role plainsql_admin --memory-gib "$MEMORY_GIB" --socket-directory /tmp \
    --cert-file /etc/plainsql/own/server.crt --key-file /etc/plainsql/own/server.key \
    --client-ca-file /etc/plainsql/own/clients.crt --client-crl-file /etc/plainsql/own/clients.crl
chown -R "$POSTGRES:$POSTGRES" /generated/cell
mkdir -p /generated/alias
chown "$PLAINSQL:$PLAINSQL" /generated/alias
chmod 0755 /generated /generated/alias
chown "$PLAINSQL:$PLAINSQL" /backups
chmod 0700 /backups
