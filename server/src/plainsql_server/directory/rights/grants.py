"""The rights of each role on the directory's tables and functions, as data.

`applying.py` grants them at the end of every `migrate`, and `checking.py` compares them with what a login may do. The
tables belong to the role that runs `migrate`, which needs no entry here. A new table or function must be added
here; a test compares the lists with the schema.

- The data plane reads. It writes its usage, the list of processes and its entry in the audit log through functions that
  check what they are given, because its login is on every node. It writes the records of spanning transactions itself.
- The control plane manages keys, sessions and databases. It adds to the audit log, and can't change what is there. It
  lists its processes as the data plane does.
- Operators may change everything but the audit log and the version of the schema. In the audit log, they may clear the
  details of an organization that they purge.
"""

import re
from collections.abc import Iterator
from enum import StrEnum


class Role(StrEnum):
    """The directory's roles. The value is the name in PostgreSQL."""

    DATA = "plainsql_data"
    CONTROL = "plainsql_control"
    OPERATOR = "plainsql_operator"


_READ = "SELECT"
_ALL = "SELECT, INSERT, UPDATE, DELETE"

# A privilege with columns is for these columns only. A row can be locked by who may update one of its columns.
TABLES: dict[str, dict[Role, str]] = {
    "alembic_version": {Role.DATA: _READ, Role.CONTROL: _READ, Role.OPERATOR: _READ},
    "tiers": {Role.DATA: _READ, Role.CONTROL: _READ, Role.OPERATOR: _READ},
    "organizations": {Role.DATA: _READ, Role.CONTROL: "SELECT, UPDATE (name)", Role.OPERATOR: _ALL},
    # A trigger counts the databases of a cell.
    "cells": {Role.DATA: _READ, Role.CONTROL: "SELECT, UPDATE (databases)", Role.OPERATOR: _ALL},
    "databases": {Role.DATA: _READ, Role.CONTROL: "SELECT, INSERT, UPDATE", Role.OPERATOR: _ALL},
    "roles": {Role.DATA: _READ, Role.CONTROL: "SELECT, INSERT, DELETE", Role.OPERATOR: _ALL},
    "api_keys": {Role.DATA: _READ, Role.CONTROL: "SELECT, INSERT, UPDATE", Role.OPERATOR: _ALL},
    "sessions": {Role.DATA: _READ, Role.CONTROL: _ALL, Role.OPERATOR: _ALL},
    "usage": {Role.CONTROL: _READ, Role.OPERATOR: _ALL},
    "audit": {Role.CONTROL: "SELECT, INSERT", Role.OPERATOR: "SELECT, INSERT"},
    "spanning_transactions": {
        Role.DATA: "SELECT, INSERT, UPDATE (state, held_until, freed_at)",
        Role.CONTROL: "SELECT, UPDATE (state, held_until, freed_at), DELETE",
        Role.OPERATOR: _ALL,
    },
    "moves": {Role.DATA: _READ, Role.CONTROL: "SELECT, UPDATE", Role.OPERATOR: _ALL},
    "backups": {Role.DATA: _READ, Role.CONTROL: _READ, Role.OPERATOR: _ALL},
    "rehearsals": {Role.DATA: _READ, Role.CONTROL: _READ, Role.OPERATOR: _ALL},
    "restores": {Role.DATA: _READ, Role.CONTROL: _ALL, Role.OPERATOR: _ALL},
    "restore_workers": {Role.DATA: _READ, Role.CONTROL: _READ, Role.OPERATOR: _ALL},
    "data_processes": {Role.DATA: _READ, Role.CONTROL: _READ, Role.OPERATOR: _ALL},
    "permits": {Role.OPERATOR: _ALL},
}

# `backup --directory` reads them.
SEQUENCES: dict[str, dict[Role, str]] = {"spanning_transactions_number_seq": {Role.OPERATOR: _READ}}

FUNCTIONS: dict[str, frozenset[Role]] = {
    "note_usage(date, text[], text[], bigint[], bigint[], bigint[], bigint[])": frozenset(Role),
    "note_keys_used(text[], timestamptz)": frozenset(Role),
    "note_code(text)": frozenset(Role),
    "note_reset(text, text, text, text, text)": frozenset(Role),
    # Of the version before.
    "join_processes(text, text, integer, text, boolean)": frozenset([Role.DATA, Role.OPERATOR]),
    "leave_processes(text)": frozenset([Role.DATA, Role.OPERATOR]),
    "renew_process(text, text, integer, text, text, text, bigint, integer, text[])": frozenset(Role),
    "leave_process(text, text)": frozenset(Role),
    "grant_permits(text[], integer[], integer[], integer[], integer[], integer[], bigint[], integer[])": frozenset(
        Role
    ),
    "delete_old_permits()": frozenset([Role.CONTROL, Role.OPERATOR]),
    "delete_old_audit(integer)": frozenset([Role.CONTROL, Role.OPERATOR]),
    "clear_audit(text)": frozenset([Role.OPERATOR]),
    # Triggers call them, for which nobody needs the right.
    "tell_of_change()": frozenset(),
    "count_databases()": frozenset(),
}

_PRIVILEGE = re.compile(r"([A-Z]+)(?: \(([^)]*)\))?")


def privileges_of(text: str) -> Iterator[tuple[str, str | None]]:
    """Each privilege of an entry, with the column it is for: None for the whole table."""
    for privilege, columns in _PRIVILEGE.findall(text):
        yield from ((privilege, column.strip() or None) for column in columns.split(","))
