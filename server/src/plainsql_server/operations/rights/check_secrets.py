"""Doctor's check of record secrets: whether they are sealed, with which keys, and whether these keys are here."""

from collections.abc import AsyncIterator

from plainsql_server.core.errors import ServiceError
from plainsql_server.directory.connection import Directory
from plainsql_server.directory.sealing.keyring import Keyring
from plainsql_server.directory.sealing.rows import SecretStates, secret_states
from plainsql_server.operations.findings import Finding, Target, broken, good, warning

_CHECK = "secrets"
_REFUSED = (
    "If a command without PLAINSQL_SECRETS_KEYS created these databases, run `plainsql-server secrets rotate` with"
    " PLAINSQL_UNSEALED_SECRETS=accept. If not, someone planted them: restore their values from a backup of the"
    " directory."
)
_ROTATE = "Run `plainsql-server secrets rotate`."


async def sealed_secrets(target: Target) -> AsyncIterator[Finding]:
    """Check the secrets with this machine's keys. The check of the directory reports one that can't be reached."""
    settings = target.settings
    keyring = Keyring.of(settings.secrets_keys, refuses_unsealed=settings.refuses_unsealed_secrets)
    try:
        async with Directory.open(settings.directory_dsn, max_connections=1, secrets=keyring) as directory:
            states = await secret_states(directory)
    except ServiceError:
        return
    for key, count in states.by_missing_key.items():
        yield broken(
            _CHECK,
            f"{count} secrets are sealed with the key {key}, which PLAINSQL_SECRETS_KEYS does not contain.",
            "Add this key on every machine, and reload the planes. If an older directory was restored, it is a key that"
            " was replaced since: add your copy of it, and run `plainsql-server secrets rotate`. Without the key, these"
            " databases have no idempotency keys and no verified reads.",
        )
    if states.forged:
        yield broken(
            _CHECK,
            f"{len(states.forged)} secrets were changed in the directory: {', '.join(states.forged[:5])}.",
            "Find out who changed them. Restore their values from a backup of the directory.",
        )
    if not keyring.key_ids:
        if not states.by_missing_key:
            yield warning(
                _CHECK,
                "Record secrets are not sealed: who reads the directory, or a backup of it, reads them.",
                "Create a key with `plainsql-server secrets new-key`, and set PLAINSQL_SECRETS_KEYS on every machine.",
            )
        return
    for finding in _with_keys(keyring, states, is_production=settings.upkeep == "on"):
        yield finding


def _with_keys(keyring: Keyring, states: SecretStates, *, is_production: bool) -> list[Finding]:
    found = []
    for number, key in enumerate(keyring.key_ids):
        count = states.by_key[key]
        if number and count:
            found.append(
                warning(_CHECK, f"{count} secrets are sealed with the key {key}, not with the first.", _ROTATE)
            )
        else:
            found.append(good(_CHECK, f"{count} secrets are sealed with the key {key}."))
    if states.unsealed and keyring.refuses_unsealed:
        text = f"{states.unsealed} secrets are not sealed, and PLAINSQL_UNSEALED_SECRETS refuses them."
        found.append(broken(_CHECK, text, _REFUSED))
    elif states.unsealed:
        found.append(warning(_CHECK, f"{states.unsealed} secrets are not sealed.", _ROTATE))
    elif not keyring.refuses_unsealed and is_production:
        text = "All secrets are sealed, but others would be used, too."
        found.append(warning(_CHECK, text, "Set PLAINSQL_UNSEALED_SECRETS=refuse on every machine."))
    return found
