"""The control plane's objects (keys, sessions, databases, organizations) and calls.

A call is a value that holds the method, path and body, so the blocking and the asyncio client share all calls. Response
fields that this version does not know are ignored.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

T = TypeVar("T")
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Key:
    """An API key. `secret` is set only when the key has just been created.

    `replaces` is the id of the key that was rotated to create this one.
    """

    id: str
    name: str
    state: str
    prefix: str
    last_four: str
    scopes: list[str]
    database: str | None
    created_at: str
    last_used_at: str | None
    expires_at: str | None
    revoked_at: str | None
    secret: str | None = None
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """A session: a token that replaces a key for a limited time. `token` is set only when it has just been issued."""

    id: str
    created_at: str
    expires_at: str
    scopes: list[str]
    database: str | None
    key_id: str
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Database:
    """A database of your organization. `branch_of` is the id of the database that it was copied from."""

    id: str
    name: str
    state: str
    default: bool
    created_at: str
    size_bytes: int | None
    restorable_until: str | None = None
    branch_of: str | None = None
    expires_at: str | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore of a database to a point in time. `state` is "waiting", "running", "done" or "failed".

    `branch_id` is the id of the branch that gets what was restored; None if the database itself does. `step`,
    `done_bytes`, `total_bytes` and `seconds_left` say how far it is, where that is known. `replaced_id` is the id of
    the deleted database that has the replaced content. `error` has `code`, `message` and `hint` if it has failed.
    """

    id: str
    state: str
    database_id: str
    branch_id: str | None
    at: str
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    step: str | None = None
    done_bytes: int | None = None
    total_bytes: int | None = None
    seconds_left: int | None = None
    replaced_id: str | None = None
    missing_transactions: int | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Organization:
    """The owner of databases and keys."""

    id: str
    name: str
    tier: str
    created_at: str


@dataclass(frozen=True, slots=True)
class Credential:
    """The key or session that the client sends: `kind` is "key" or "session", `database` the one it is bound to."""

    kind: str
    id: str
    scopes: list[str]
    database: str | None
    expires_at: str | None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request to the control plane, and how to read its response."""

    method: str
    target: str
    read: Callable[[Any], T]
    content: Mapping[str, Any] | None = None
    # Whether running it twice has the same effect as once. If so, it is repeated after a lost response.
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A paginated request."""

    path: str
    plural: str
    read: Callable[[Any], T]
    query: Mapping[str, str]

    def page(self, cursor: str | None) -> Call[tuple[list[T], str | None]]:
        asked = {**self.query, "limit": str(_PAGE), **({"cursor": cursor} if cursor else {})}
        return Call("GET", f"{self.path}?{urlencode(asked)}", self._read_page)

    def _read_page(self, answer: Any) -> tuple[list[T], str | None]:
        return [self.read(each) for each in answer[self.plural]], answer["next"]


def record_of(kind: type[T]) -> Callable[[Mapping[str, Any]], T]:
    """A function that reads objects of this class from response objects."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # dataclasses all

    def read(content: Mapping[str, Any]) -> T:
        return kind(**{name: value for name, value in content.items() if name in names})

    return read


def within(name: str, kind: type[T]) -> Callable[[Any], T]:
    read = record_of(kind)
    return lambda answer: read(answer[name])


def nothing(_: Any) -> None:
    return None


def _given(**fields_given: Any) -> dict[str, Any]:
    return {name: value for name, value in fields_given.items() if value is not None}


def create_session(scopes: Sequence[str] | None, database: str | None, expires_in_s: int | None) -> Call[Session]:
    chosen = list(scopes) if scopes else None
    content = _given(scopes=chosen, database=database, expires_in_seconds=expires_in_s)
    return Call("POST", "/v1/session", within("session", Session), content, repeatable=False)


def refresh_session() -> Call[Session]:
    return Call("POST", "/v1/session/refresh", within("session", Session), {}, repeatable=False)


def end_session() -> Call[None]:
    # The second attempt would fail, because the session no longer exists.
    return Call("DELETE", "/v1/session", nothing, repeatable=False)


def create_key(name: str, scopes: Sequence[str], database: str | None, expires_at: dt.datetime | None) -> Call[Key]:
    expiry = expires_at.isoformat() if expires_at else None
    content = _given(name=name, scopes=list(scopes), database=database, expires_at=expiry)
    return Call("POST", "/v1/keys", within("key", Key), content, repeatable=False)


def list_keys() -> Listing[Key]:
    return Listing("/v1/keys", "keys", record_of(Key), {})


def rotate_key(key_id: str, overlap_seconds: int | None) -> Call[Key]:
    return _rotation(key_id, overlap_seconds, within("key", Key))


def rotate_key_and_show_both(key_id: str, overlap_seconds: int | None) -> Call[tuple[Key, Key]]:
    """The new key and the one that it replaces, which says until when it is valid."""
    new, old = within("key", Key), within("replaced", Key)
    return _rotation(key_id, overlap_seconds, lambda answer: (new(answer), old(answer)))


def _rotation(key_id: str, overlap_seconds: int | None, read: Callable[[Any], T]) -> Call[T]:
    content = _given(overlap_seconds=overlap_seconds)
    return Call("POST", f"/v1/keys/{quote(key_id)}/rotate", read, content, repeatable=False)


def revoke_key(key_id: str) -> Call[None]:
    return Call("DELETE", f"/v1/keys/{quote(key_id)}", nothing)


def create_database(name: str, branch_of: str | None, expires_at: dt.datetime | None) -> Call[Database]:
    content = _given(name=name, branch_of=branch_of, expires_at=_text_of(expires_at))
    return Call("POST", "/v1/databases", within("database", Database), content, repeatable=False)


def create_branch_at(name: str, branch_of: str, at: dt.datetime, expires_at: dt.datetime | None) -> Call[Restore]:
    content = _given(name=name, branch_of=branch_of, at=_text_of(at), expires_at=_text_of(expires_at))
    return Call("POST", "/v1/databases", within("restore", Restore), content, repeatable=False)


def _text_of(time: dt.datetime | None) -> str | None:
    # A time without an offset is one of this machine.
    return None if time is None else (time if time.tzinfo else time.astimezone()).isoformat()


def list_databases() -> Listing[Database]:
    return Listing("/v1/databases", "databases", record_of(Database), {})


def change_database(database_id: str, name: str | None, default: bool | None) -> Call[Database]:
    content = _given(name=name, default=default)
    return Call("PATCH", f"/v1/databases/{quote(database_id)}", within("database", Database), content)


def delete_database(database_id: str, *, restorable: bool) -> Call[Database]:
    target = f"/v1/databases/{quote(database_id)}" + ("" if restorable else "?restorable=false")
    # After a permanent deletion, a second attempt would not find the database.
    return Call("DELETE", target, within("database", Database), repeatable=restorable)


def restore_database(database_id: str) -> Call[Database]:
    return Call("POST", f"/v1/databases/{quote(database_id)}/restore", within("database", Database), repeatable=False)


def restore_database_at(database_id: str, at: dt.datetime) -> Call[Restore]:
    target = f"/v1/databases/{quote(database_id)}/restore"
    return Call("POST", target, within("restore", Restore), {"at": _text_of(at)}, repeatable=False)


def list_restores() -> Listing[Restore]:
    return Listing("/v1/restores", "restores", record_of(Restore), {})


def get_restore(restore_id: str) -> Call[Restore]:
    return Call("GET", f"/v1/restores/{quote(restore_id)}", within("restore", Restore))


def organization() -> Call[Organization]:
    return Call("GET", "/v1/organizations/current", within("organization", Organization))


def caller() -> Call[tuple[Organization, Credential]]:
    organization_of, credential_of = within("organization", Organization), within("credential", Credential)
    return Call("GET", "/v1/organizations/current", lambda answer: (organization_of(answer), credential_of(answer)))


def rename_organization(name: str) -> Call[Organization]:
    return Call("PATCH", "/v1/organizations/current", within("organization", Organization), {"name": name})


def usage(start: dt.date | None, end: dt.date | None) -> Listing[dict[str, Any]]:
    asked = {"from": start, "to": end}
    return Listing("/v1/usage", "usage", dict, {name: str(day) for name, day in asked.items() if day})


def audit() -> Listing[dict[str, Any]]:
    return Listing("/v1/audit", "audit", dict, {})


def pages(listing: Listing[T], fetch: Callable[[Call[tuple[list[T], str | None]]], Any]) -> Iterator[T]:
    """All entries of a listing, page by page, with a blocking `fetch`."""
    cursor = None
    while True:
        found, cursor = fetch(listing.page(cursor))
        yield from found
        if cursor is None:
            return
