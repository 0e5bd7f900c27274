"""Whether the first message of a TLS client, its ClientHello, has arrived completely.

    wanted_bytes(b"\\x16\\x03\\x01")       # 9: more of it must arrive
    wanted_bytes(complete)             # 0

The message may be spread over several records, the first of which may be as short as one byte. TLS starts when all of
them are there: its objects cost several times what a socket costs.
"""

# A record begins with its type, a version and its length; a message in it with its type and its length.
_RECORD_HEAD_BYTES = 5
_HANDSHAKE_RECORD = 22
_MAX_RECORD_BYTES = 16 * 1024
_MESSAGE_HEAD_BYTES = 4
_CLIENT_HELLO = 1
# Those of clients have some hundred bytes, or 2 KiB with keys that withstand quantum computers, in one record.
_MAX_MESSAGE_BYTES = 16 * 1024
_MAX_RECORDS = 32
# The last record may contain more than the end of the message.
MAX_BYTES = _MAX_MESSAGE_BYTES + _MAX_RECORD_BYTES + _MAX_RECORDS * _RECORD_HEAD_BYTES


def wanted_bytes(beginning: bytes) -> int:
    """How many bytes there must be before it is worth looking again, or 0 if the message is complete.

    `beginning` is all that has arrived. Raises ConnectionAbortedError if this is no ClientHello.
    """
    message, record = b"", 0
    for _ in range(_MAX_RECORDS):
        missing_bytes = _message_bytes(message) - len(message)
        if missing_bytes <= 0:
            return 0
        head = beginning[record : record + _RECORD_HEAD_BYTES]
        if head and head[0] != _HANDSHAKE_RECORD:
            raise ConnectionAbortedError
        content = record + _RECORD_HEAD_BYTES
        if len(head) < _RECORD_HEAD_BYTES:
            return content + missing_bytes
        end = content + _record_bytes(head)
        message += beginning[content:end]
        # Looks at what there is of the message, which may show that it is none.
        _message_bytes(message)
        if len(beginning) < end:
            return end
        record = end
    raise ConnectionAbortedError


def _record_bytes(head: bytes) -> int:
    size_bytes = int.from_bytes(head[3:])
    if not 0 < size_bytes <= _MAX_RECORD_BYTES:
        raise ConnectionAbortedError
    return size_bytes


def _message_bytes(message: bytes) -> int:
    """The length of the whole message, as far as it is known."""
    if message and message[0] != _CLIENT_HELLO:
        raise ConnectionAbortedError
    if len(message) < _MESSAGE_HEAD_BYTES:
        return _MESSAGE_HEAD_BYTES
    size_bytes = _MESSAGE_HEAD_BYTES + int.from_bytes(message[1:_MESSAGE_HEAD_BYTES])
    if size_bytes > _MAX_MESSAGE_BYTES:
        raise ConnectionAbortedError
    return size_bytes
