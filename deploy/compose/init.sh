#!/bin/sh
# Prepares this folder for `docker compose up`: .env, the images, secrets/ and generated/.
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

for target in server ops; do
    image=$PLAINSQL_IMAGE
    [ "$target" = server ] || image=$PLAINSQL_OPS_IMAGE
    $DOCKER image inspect "$image" >/dev/null 2>&1 || $DOCKER build --file ../docker/Dockerfile --target "$target" \
        --build-arg "BASE=$PLAINSQL_BASE_IMAGE" --tag "$image" ../..
done

mkdir -p secrets generated
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
    --volume "$PWD/scripts:/scripts:ro" \
    --entrypoint /bin/sh "$PLAINSQL_IMAGE" /scripts/secrets.sh
