"""A backup as a file: a plain tar of small pieces, so that it can be written and read as a stream.

Owns that form. `manifest.json` comes first and says what it is; then `schema/…` and `data/…`, the pieces of two
archives of pg_dump, and `requests/…` and `responses/…`, the records of requests; `end.json` comes last and has the
checksum of all. A file without it was cut short, and nothing of it counts. Refuses to hold more than a piece in memory.
"""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from plainsql_server.core.clock import now
from plainsql_server.core.errors import RequestError

T = TypeVar("T")

# Goes up when what is written could be misread by what was there before.
_FORM = 1
PIECE_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20
_MANIFEST, _END = "manifest.json", "end.json"
# A manifest is some hundred bytes; whoever says more wants our memory.
_LARGEST_JSON_BYTES = 1 << 20


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup is of, and what reading it takes."""

    form: int = _FORM
    kind: str
    name: str
    taken_at: str
    server_version: str
    dumped_by_major: int
    # The roles whose names are in the schema, and get those of the database that it is restored to.
    owner_role: str = ""
    reader_role: str = ""
    # The size of all tables when it was taken, for whoever shows how far a restore is.
    tables_bytes: int = 0
    # Whether the moment was one of a serial history; see `engine/admin/backups.py`.
    is_serial: bool = False


class End(msgspec.Struct, frozen=True, kw_only=True):
    """That the backup is whole."""

    sha256: str
    pieces: int
    # Whether the database held no code of its customer's even after the dump.
    plain: bool = False


class PieceWriter:
    """Writes a backup to a stream."""

    def __init__(self, stream: BinaryIO, manifest: Manifest) -> None:
        # Closing it writes its end, so that only `finish` may.
        self._tar = tarfile.open(  # noqa: SIM115
            fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT, bufsize=_BUFFER_BYTES
        )
        self._hash = hashlib.sha256()
        self._pieces = 0
        self._write(_MANIFEST, msgspec.json.encode(manifest))

    def write(self, part: str, content: bytes) -> None:
        """Adds a piece to a part of the backup."""
        self._write(f"{part}/{self._pieces:09}", content)

    def finish(self, *, plain: bool = False) -> None:
        """Says that the backup is whole, and ends the file."""
        end = End(sha256=self._hash.hexdigest(), pieces=self._pieces, plain=plain)
        self._write(_END, msgspec.json.encode(end))
        self._tar.close()

    def _write(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = len(content), 0o600, int(now().timestamp())
        try:
            self._tar.addfile(member, io.BytesIO(content))
        except BaseException:
            # It would try to write its end when it is collected, and complain.
            cast("Any", self._tar.fileobj).closed = True
            raise
        _digest(self._hash, name, content)
        self._pieces += 1


class PieceReader:
    """Reads a backup from a stream, once, in order."""

    def __init__(self, stream: BinaryIO) -> None:
        self.end: End | None = None
        self._hash = hashlib.sha256()
        self._pieces = 0
        try:
            self._tar = tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER_BYTES)  # noqa: SIM115
            name, content = next(self._members(), ("", b""))
        except tarfile.TarError as error:
            raise _not_a_backup() from error
        if name != _MANIFEST:
            raise _not_a_backup()
        self.manifest = _decoded(content, Manifest)
        if self.manifest.form != _FORM:
            raise RequestError("not_a_backup", f"This version cannot read a backup of form {self.manifest.form}.")

    def pieces(self) -> Iterator[tuple[str, bytes]]:
        """Each piece with its part; `end` is set after the last. Raises RequestError if the backup is not whole."""
        try:
            for name, content in self._members():
                part, slash, _ = name.partition("/")
                if slash:
                    yield part, content
        except (tarfile.TarError, EOFError) as error:
            raise RequestError("backup_damaged", f"The backup cannot be read to its end: {error}.") from error
        if self.end is None:
            raise RequestError("backup_damaged", "The backup ends before its end: it was cut short.")

    def _members(self) -> Iterator[tuple[str, bytes]]:
        while (member := self._tar.next()) is not None:
            if self.end is not None:
                raise RequestError("backup_damaged", "The backup goes on after its end.")
            if not member.isreg() or member.size > _LARGEST_JSON_BYTES:
                raise _not_a_backup()
            file = self._tar.extractfile(member)
            content = file.read() if file is not None else b""
            if member.name == _END:
                self._check(content)
            _digest(self._hash, member.name, content)
            self._pieces += 1
            yield member.name, content

    def _check(self, content: bytes) -> None:
        end = _decoded(content, End)
        if (end.sha256, end.pieces) != (self._hash.hexdigest(), self._pieces):
            raise RequestError("backup_damaged", "The backup's content does not fit its checksum.")
        self.end = end


def _digest(hashed: "hashlib._Hash", name: str, content: bytes) -> None:
    # A strange file's names may be in any encoding.
    hashed.update(f"{name} {len(content)}\n".encode(errors="surrogateescape"))
    hashed.update(content)


def _decoded(content: bytes, model: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=model)
    except msgspec.MsgspecError as error:
        raise RequestError("backup_damaged", f"The backup's description cannot be read: {error}.") from error


def _not_a_backup() -> RequestError:
    return RequestError(
        "not_a_backup",
        "This is not a backup made by `plainsql-server backup`.",
        hint="If it is compressed, decompress it on its way here: `zstd -dc shop.zst | plainsql-server restore …`.",
    )
