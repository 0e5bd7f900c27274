"""The backup file format: a plain tar of small parts, which can be written and read as a stream.

    writer = ArchiveWriter(stream, manifest)
    writer.write("data", content)
    writer.finish()

`manifest.json` comes first and describes the backup. Then come `schema/…` and `data/…`, the parts of two pg_dump
archives, and `requests/…` and `responses/…`, the request records. `end.json` comes last and holds the checksum of
everything before it. A file without `end.json` is incomplete and is rejected. At most one part is held in memory.
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

# Increase it when older versions could misread what this version writes.
_FORMAT = 1
CHUNK_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 20
_MANIFEST, _END = "manifest.json", "end.json"
# A manifest has a few hundred bytes. A larger one is an attempt to exhaust memory.
_LARGEST_JSON_BYTES = 1 << 20


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the backup contains, and what is needed to read it."""

    format: int = msgspec.field(default=_FORMAT, name="form")
    kind: str
    name: str
    # The ids of the database and its organization. Older backups have none.
    database_id: str = ""
    organization_id: str = ""
    taken_at: str
    server_version: str
    dumped_by_major: int
    # Roles named in the schema. A restore replaces them with the roles of the target database.
    owner_role: str = ""
    reader_role: str = ""
    # Size of all tables at the time of the backup, to show a restore's progress.
    tables_bytes: int = 0
    # Whether the snapshot is part of a serial history; see `engine/admin/backups.py`.
    is_serial: bool = False


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Marks the backup as complete."""

    sha256: str
    chunks: int = msgspec.field(name="pieces")
    # Whether the database contained no customer code, checked after the dump.
    without_code: bool = msgspec.field(default=False, name="plain")


class ArchiveWriter:
    """Writes a backup to a stream."""

    def __init__(self, stream: BinaryIO, manifest: Manifest) -> None:
        self._tar = tarfile.open(  # noqa: SIM115
            fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT, bufsize=_BUFFER_BYTES
        )
        # Closing the tar writes its end, so only `finish` may do that, and not the garbage collector after a failure.
        self._mark_closed(True)
        self._hash = hashlib.sha256()
        self._chunks = 0
        self._write(_MANIFEST, msgspec.json.encode(manifest))

    def write(self, part: str, content: bytes) -> None:
        """Append content to one of the backup's archives, such as `data`."""
        self._write(f"{part}/{self._chunks:09}", content)

    def finish(self, *, without_code: bool = False) -> None:
        """Mark the backup as complete and end the file."""
        end = End(sha256=self._hash.hexdigest(), chunks=self._chunks, without_code=without_code)
        self._write(_END, msgspec.json.encode(end))
        self._mark_closed(False)
        self._tar.close()

    def _mark_closed(self, is_closed: bool) -> None:
        cast("Any", self._tar.fileobj).closed = is_closed

    def _write(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = len(content), 0o600, int(now().timestamp())
        self._tar.addfile(member, io.BytesIO(content))
        _digest(self._hash, name, content)
        self._chunks += 1


class ArchiveReader:
    """Reads a backup from a stream, once, in order."""

    def __init__(self, stream: BinaryIO) -> None:
        self.end: End | None = None
        self._hash = hashlib.sha256()
        self._chunks = 0
        self._stream = stream
        try:
            self._tar = tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER_BYTES)  # noqa: SIM115
            name, content = next(self._members(), ("", b""))
        except tarfile.TarError as error:
            raise _not_a_backup() from error
        if name != _MANIFEST:
            raise _not_a_backup()
        self.manifest = _decoded(content, Manifest)
        if self.manifest.format != _FORMAT:
            raise RequestError("not_a_backup", f"This version can't read backup format {self.manifest.format}.")

    def chunks(self) -> Iterator[tuple[str, bytes]]:
        """Yield (archive, content) pairs, then set `end`. Raises RequestError if the backup is incomplete."""
        try:
            for name, content in self._members():
                part, slash, _ = name.partition("/")
                if slash:
                    yield part, content
        except (tarfile.TarError, EOFError) as error:
            raise RequestError("backup_damaged", f"The backup can't be read to the end: {error}.") from error
        if self.end is None:
            raise RequestError("backup_damaged", "The backup is incomplete: it was cut short.")
        # A program that the backup comes through may fail at its very end, and only that end says so.
        while self._stream.read(_BUFFER_BYTES):
            pass

    def _members(self) -> Iterator[tuple[str, bytes]]:
        while (member := self._tar.next()) is not None:
            if self.end is not None:
                raise RequestError("backup_damaged", "The backup has data after its end marker.")
            if not member.isreg() or member.size > _LARGEST_JSON_BYTES:
                raise _not_a_backup()
            file = self._tar.extractfile(member)
            content = file.read() if file is not None else b""
            if member.name == _END:
                self._check(content)
            _digest(self._hash, member.name, content)
            self._chunks += 1
            yield member.name, content

    def _check(self, content: bytes) -> None:
        end = _decoded(content, End)
        if (end.sha256, end.chunks) != (self._hash.hexdigest(), self._chunks):
            raise RequestError("backup_damaged", "The backup's content does not match its checksum.")
        self.end = end


def _digest(hashed: "hashlib._Hash", name: str, content: bytes) -> None:
    # The names in an arbitrary tar file may be in any encoding.
    hashed.update(f"{name} {len(content)}\n".encode(errors="surrogateescape"))
    hashed.update(content)


def _decoded(content: bytes, model: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=model)
    except msgspec.MsgspecError as error:
        raise RequestError("backup_damaged", f"The backup's metadata can't be read: {error}.") from error


def _not_a_backup() -> RequestError:
    return RequestError(
        "not_a_backup",
        "This is not a backup made by `plainsql-server backup`.",
        hint="If it is compressed, decompress it first: `zstd -dc shop.zst | plainsql-server restore …`.",
    )
