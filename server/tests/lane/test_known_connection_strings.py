"""A head with a connection string shows who calls and for which database only where the ordinary path finds the same.

The route is POST /sql. The header Neon-Connection-String has the secret as its password, and the database as its path.
"""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plainsql_server.core.names import DATABASE_NAME
from plainsql_server.extension_modules import COMPILED
from plainsql_server.http.app.authentication import secret_of
from plainsql_server.http.data.neon_connection import read_neon_secret
from server.tests.lane.known import KEY, OTHER_KEY, TOKEN, caller_in
from server.tests.lane.parser import Parser

if COMPILED:
    from plainsql_server.lane.known_head import KnownHead
    from plainsql_server.lane.learning import LearnedHead, LearnedHeads, learn_head

pytestmark = [pytest.mark.unit, pytest.mark.compiled]

BODY = b'{"query":"select 1","params":[]}'
STRING = b"Neon-Connection-String: postgresql://app:" + KEY + b"@api.example.com/mine"
NAME = b"Neon-Connection-String: "


def request_with(*lines: bytes) -> bytes:
    """A request as the driver sends it, with these lines in its head."""
    head = [b"POST /sql HTTP/1.1", b"Host: x", *lines, b"Neon-Raw-Text-Output: true", b"Neon-Array-Mode: true"]
    return b"\r\n".join([*head, b"Content-Type: text/plain", b"Content-Length: %d" % len(BODY), b"", BODY])


def learned(data: bytes) -> "LearnedHead | None":
    return learn_head(data, Parser().read(data), None, read_neon_secret)


def known_by(*lines: bytes) -> "KnownHead":
    head = learned(request_with(*lines))
    assert head is not None
    return head.known


def caller_of(data: bytes) -> tuple[bytes, bytes | None]:
    """The secret and the database as the ordinary path reads them."""
    request = Parser().read(data)
    secret = read_neon_secret(request)
    name = request.named_database or request.header(b"x-database")
    return secret.encode(), None if name is None else name.encode()


@pytest.mark.parametrize(
    "string",
    [
        b"postgresql://app:%b@api.example.com/%b", b"postgres://app:%b@localhost:5432/%b", b"POSTGRESQL://:%b@[::1]/%b",
        b"postgresql://mine:%b@mine/%b?sslmode=require&x=/mine", b"postgresql://a%%40b:%b@host/%b?options=-c%%20a",
        b"postgresql://a:%b@host/%b#/other", b"postgresql://\xc3\xa9:%b@host/%b", b"postgresql://:%b@/%b",
        b"postgresql://svc_k_x:%b@host/%b", b"postgresql://a:%b@b:c@/%b",
    ],
)  # fmt: skip
@pytest.mark.parametrize("secret", [OTHER_KEY, TOKEN])
@pytest.mark.parametrize("name", [b"a", b"other-1", b"z" * 63])
def test_other_callers_are_known_by_the_same_head(string: bytes, secret: bytes, name: bytes) -> None:
    line, data = NAME + string % (KEY, b"mine"), request_with(NAME + string % (secret, name))
    if caller_of(request_with(line)) != (KEY, b"mine"):
        # The last @ ends the password.
        assert learned(request_with(line)) is None
        return
    known = known_by(line)
    assert known.match(data) == known.COMPLETE
    assert caller_in(known, data) == caller_of(data) == (secret, name)
    assert data[known.body_at :] == BODY


def test_a_connection_string_without_a_database_may_leave_it_to_another_header() -> None:
    line = STRING.removesuffix(b"mine")
    for unnamed in (line, line.removesuffix(b"/")):
        known = known_by(unnamed)
        data = request_with(unnamed.replace(KEY, TOKEN))
        assert known.match(data) == known.COMPLETE
        assert caller_in(known, data) == caller_of(data) == (TOKEN, None)
        assert known.match(request_with(STRING)) == 0
        named = known_by(unnamed, b"X-Database: mine")
        data = request_with(unnamed, b"X-Database: other")
        assert named.match(data) == named.COMPLETE
        assert caller_in(named, data) == caller_of(data) == (KEY, b"other")


def test_a_bearer_token_will_do() -> None:
    known = known_by(b"Authorization: Bearer " + KEY, b"X-Database: mine")
    data = request_with(b"Authorization: Bearer " + TOKEN, b"X-Database: other")
    assert known.match(data) == known.COMPLETE
    assert caller_in(known, data) == caller_of(data) == (TOKEN, b"other")


def test_nothing_of_a_caller_is_kept_with_a_head() -> None:
    head = learned(request_with(STRING, b"Origin: https://x"))
    assert head is not None
    assert head.headers == {
        b"host": b"x", b"origin": b"https://x", b"content-type": b"text/plain", b"neon-raw-text-output": b"true",
        b"neon-array-mode": b"true",
    }  # fmt: skip
    parts = head.known.key[0]
    assert isinstance(parts, tuple)
    assert not any(KEY in part or b"mine" in part for part in parts)


def test_clients_with_the_same_user_and_host_share_a_head() -> None:
    shared = LearnedHeads()
    lines = [STRING, STRING.replace(KEY, TOKEN).replace(b"/mine", b"/other"), STRING.replace(b"app", b"bob")]
    data = [request_with(line) for line in lines]
    shared_heads = [shared.learn(each, Parser().read(each), None, read_neon_secret) for each in data]
    assert shared_heads[0] is shared_heads[1]
    assert shared_heads[0] is not shared_heads[2]
    assert None not in shared_heads


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (NAME,),
        (NAME + b"x",),
        (STRING.replace(b"postgresql", b"mysql"),),
        (STRING.replace(KEY, b""),),
        (STRING.replace(KEY, KEY[:-1]),),
        (STRING.replace(KEY, KEY + b"a"),),
        (STRING.replace(KEY, b"svc%5Fk_" + KEY[6:]),),
        (STRING.replace(KEY, b"%73vc_k_" + KEY[6:]),),
        (STRING.replace(KEY, KEY[:-3] + b"%5A"),),
        (STRING.replace(KEY, KEY + b"/"),),
        (STRING.replace(KEY, KEY + b"?"),),
        (STRING.replace(KEY, KEY + b"#@"),),
        (STRING.replace(KEY, KEY + b":" + KEY),),
        # A secret would be kept with the head.
        (STRING.replace(b"app", OTHER_KEY),),
        (STRING + b"?password=" + TOKEN,),
        (STRING + b"?password=" + TOKEN.replace(b"_", b"%5F"),),
        (STRING, b"X-Key: " + OTHER_KEY),
        (STRING, b"Cookie: session=" + TOKEN + b"; a=b"),
        # The user is the same text as the password, and comes first.
        (STRING.replace(b"app", KEY),),
        (STRING.replace(b"/mine", b"/m%69ne"),),
        (STRING.replace(b"/mine", b"/mine%20"),),
        (STRING.replace(b"/mine", b"/Mine"),),
        (STRING.replace(b"/mine", b"//mine"),),
        (STRING.replace(b"/mine", b"/mine/"),),
        (STRING.replace(b"/mine", b"/m\xc3\xa9ne"),),
        (STRING.replace(b"/mine", b"/" + b"m" * 64),),
        (STRING.replace(b": ", b":"),),
        (STRING.replace(b": ", b":  "),),
        (STRING.replace(b": ", b":\t"),),
        (STRING + b" ",),
        (STRING + b"\t",),
        (STRING, STRING),
        (STRING, STRING.lower().replace(KEY.lower(), OTHER_KEY)),
        (NAME + b"x", STRING),
        (STRING, NAME + b"x"),
        (STRING, b"X-Database: other"),
        (STRING, b"X-Database: mine"),
        (STRING, b"Authorization: Bearer " + OTHER_KEY),
        (STRING, b"Authorization:"),
        (STRING, b"authorization: Basic x"),
        (STRING, b"Idempotency-Key: a"),
        (STRING, b"Transfer-Encoding: chunked"),
        (STRING, b"X-Padding: " + b"x" * 2048),
        (STRING.replace(b"app", b"a" * 2048),),
    ],
)
def test_a_head_whose_caller_must_be_parsed_is_not_learned(lines: tuple[bytes, ...]) -> None:
    data = request_with(*lines)
    request = Parser()
    try:
        parsed = request.read(data)
    except Exception:  # the parser refuses some of them
        return
    assert learn_head(data, parsed, None, read_neon_secret) is None


@pytest.mark.parametrize("at", range(len(KEY) + 6))
def test_no_byte_around_or_in_a_secret_or_name_may_be_any_other(at: int) -> None:
    known = known_by(STRING)
    start = STRING.index(KEY) - 3 + at
    for byte in range(256):
        line = STRING[:start] + bytes([byte]) + STRING[start + 1 :]
        is_alphanumeric = re.fullmatch(rb"[0-9A-Za-z]", bytes([byte])) is not None
        may_differ = is_alphanumeric and 9 <= at < 3 + len(KEY)
        matched = known.match(request_with(line)) == known.COMPLETE
        assert matched == (may_differ or line == STRING or line[start - 4 :].startswith(b"svc_s")), line


@pytest.mark.parametrize(
    "name", [b"", b" ", b"Mine", b"1mine", b"mi/ne", b"mi%6ee", b"mine?", b"mine#", b"mine ", b"m" * 64]
)
def test_another_form_of_a_databases_name_is_not_known(name: bytes) -> None:
    assert known_by(STRING).match(request_with(STRING.replace(b"/mine", b"/" + name))) == 0


def test_a_head_of_our_own_routes_is_not_learned_by_its_connection_string() -> None:
    for lines in ((STRING,), (STRING, b"Authorization: Bearer " + KEY)):
        data = request_with(*lines).replace(b"/sql", b"/v1/query")
        assert learn_head(data, Parser().read(data), None, secret_of) is None


INSERTED = st.sampled_from([
    b"\r\n", b"\r", b"\n", b" ", b"\t", b":", b"@", b"/", b"?", b"#", b"%", b"%40", b"%2F", b"\0", b"\xff", b"\xc3\xa9",
    KEY, OTHER_KEY, TOKEN, KEY[:10], b"mine", b"other", b"a", b"_", b"-", b"0", b"postgresql://", b"@host/other",
    b"\r\nX-Database: other", b"\r\nAuthorization: Bearer " + OTHER_KEY, b"\r\nNeon-Array-Mode: false", b"\r\n\r\n",
    b"\r\nNeon-Connection-String: postgresql://app:" + OTHER_KEY + b"@api.example.com/other",
])  # fmt: skip
SECRETS = st.one_of(
    st.sampled_from([KEY, OTHER_KEY, TOKEN, b"", KEY[:-1]]),
    st.from_regex(rb"svc_[ks]_[0-9A-Za-z]{37,39}", fullmatch=True),
)
NAMES = st.one_of(st.from_regex(DATABASE_NAME.pattern.encode(), fullmatch=True), st.binary(max_size=4))
EDITS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 50), st.one_of(INSERTED, st.binary(max_size=3))), max_size=3
)
LINES = (STRING, STRING.removesuffix(b"/mine"), STRING + b"?sslmode=require", STRING.replace(b"app", b"a%40b"))


@given(line=st.sampled_from(LINES), secret=SECRETS, name=NAMES, edits=EDITS)
@example(line=STRING, secret=OTHER_KEY, name=b"other", edits=[])
def test_whatever_is_known_is_read_as_the_ordinary_path_reads_it(
    line: bytes, secret: bytes, name: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    known = known_by(line)
    data = request_with(line.replace(KEY, secret).replace(b"/mine", b"/" + name))
    for start, size, inserted in edits:
        at = start % len(data)
        # Half of them near the values that are in question.
        if start % 2 and (found := data.find(b"postgres")) >= 0:
            at = found + start % 90
        data = data[:at] + inserted + data[at + size :]
    if known.match(data) != known.COMPLETE:
        return
    whole = data[: known.body_at + known.body_size]
    request = Parser().read(whole)
    assert (request.method, request.path, request.query_string) == ("POST", "/sql", b"")
    assert caller_in(known, data) == caller_of(whole)
    assert request.headers[b"neon-array-mode"] == request.headers[b"neon-raw-text-output"] == b"true"
    assert request.body == whole[known.body_at :]


@given(edits=EDITS, line=st.sampled_from(LINES))
def test_whatever_is_learned_knows_itself_and_what_it_reads(edits: list[tuple[int, int, bytes]], line: bytes) -> None:
    data = request_with(line)
    for start, size, inserted in edits:
        at = data.find(b"postgres") + start % 90
        data = data[:at] + inserted + data[at + size :]
    try:
        head = learned(data)
    except Exception:  # it is no request any more, or several
        return
    if head is None:
        return
    assert head.known.match(data) == KnownHead.COMPLETE
    assert caller_in(head.known, data) == caller_of(data)
    secret, database = caller_of(data)
    # Another caller's request is read as that caller's.
    other = data.replace(secret, TOKEN)
    if head.known.match(other) == KnownHead.COMPLETE:
        assert caller_in(head.known, other) == caller_of(other)
    if database is not None:
        other = data.replace(b"/" + database, b"/other-name")
        if head.known.match(other) == KnownHead.COMPLETE:
            assert caller_in(head.known, other) == caller_of(other)
