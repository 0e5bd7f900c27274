#!/bin/sh
# Prepares this folder for `docker compose up`: .env, the images, secrets/, generated/ and backups/.
#
# Run it again after a change of .env or an upgrade. What it has made in secrets/ is never overwritten; the settings of the
# cell in generated/ are written again, and your own certificate is copied again. `./init.sh renew` also renews the
# certificates. DOCKER=podman uses another engine.
set -eu
cd "$(dirname "$0")"
DOCKER=${DOCKER:-docker}
renew=
[ "${1:-}" != renew ] || renew=1

[ -e .env ] || cp .env.example .env
. ./.env

version=$(sed -n 's/.*image\.version="\([^"]*\)".*/\1/p' ../docker/Dockerfile)
# TARGET NAME TAG: builds an image that does not exist, if the checkout is of the version that the tag names.
build() {
    ! $DOCKER image inspect "$2" >/dev/null 2>&1 || return 0
    if [ "${2##*:}" != "$3" ]; then
        echo "init.sh: $2 does not exist, and this checkout is version $version, which is built as :$3." \
            "Check out the version that .env names (git checkout v…), or correct .env." >&2
        exit 1
    fi
    $DOCKER build --file ../docker/Dockerfile --target "$1" --build-arg "BASE=$PLAINSQL_BASE_IMAGE" --tag "$2" ../..
}
build server "$PLAINSQL_IMAGE" "$version"
build ops "$PLAINSQL_OPS_IMAGE" "$version-ops"

# The users in the containers read these. A checkout that was made with a strict umask has them for its owner only.
chmod -R a+rX scripts directory nginx.conf monitoring ../prometheus/plainsql-alerts.yml ../grafana/plainsql.json
mkdir -p secrets generated backups
# Copied for compose.tls.yaml.
set --
if [ -e "$PLAINSQL_TLS_KEY_FILE" ]; then
    set -- --volume "$(realpath "$PLAINSQL_TLS_CERT_FILE"):/tls/server.crt:ro" \
        --volume "$(realpath "$PLAINSQL_TLS_KEY_FILE"):/tls/server.key:ro"
fi
# As root, to give each program files that no other one can read.
$DOCKER run --rm --network none --user 0:0 --read-only --cap-drop all --cap-add chown --cap-add dac_override \
    --cap-add fowner --no-healthcheck --env "PLAINSQL_HOST=$PLAINSQL_HOST" --env "MEMORY_GIB=$PLAINSQL_CELL_MEMORY_GIB" \
    --env "RENEW=$renew" "$@" --volume "$PWD/secrets:/secrets" --volume "$PWD/generated:/generated" \
    --volume "$PWD/backups:/backups" --volume "$PWD/scripts:/scripts:ro" \
    --entrypoint /bin/sh "$PLAINSQL_IMAGE" /scripts/secrets.sh
