"""JSON parameters to the engine's text, by type, without an engine."""

import pytest

from plainsql_server.core.errors import RequestError
from plainsql_server.engine.encoding.parameters import encode_parameter, needs_type
from plainsql_server.engine.encoding.types import SHIPPED_TYPES, EngineType

pytestmark = pytest.mark.unit

_BY_NAME = {type_.name: type_ for type_ in SHIPPED_TYPES.values()}
_JSON_DOMAIN = EngineType(16_500, "document", base=_BY_NAME["jsonb"])
_LIST_DOMAIN = EngineType(16_501, "list", base=_BY_NAME["int4[]"])
_LISTS = EngineType(16_502, "list[]", element=_LIST_DOMAIN)
_DOCUMENTS = EngineType(16_503, "document[]", element=_JSON_DOMAIN)

ENCODED: list[tuple[bytes, EngineType | str, bytes | None]] = [
    # JSON, type, the engine's text
    (b"null", "text", None),
    (b"null", "jsonb", None),
    (b"null", "int4[]", None),
    (b"true", "bool", b"true"),
    (b"1.50", "numeric", b"1.50"),
    (b"1.50", "text", b"1.50"),
    (b"1E5", "jsonb", b"1E5"),
    (b'"a\\"b"', "text", b'a"b'),
    (b'"\\ud83d\\ude00"', "text", "😀".encode()),
    (b'"7"', "int4", b"7"),
    (b'"a"', "jsonb", b'"a"'),
    (b'{"a":  1}', "json", b'{"a":  1}'),
    (b"[1, 2]", "jsonb", b"[1, 2]"),
    (b"[1, 2]", _JSON_DOMAIN, b"[1, 2]"),
    (b'"AP8Q"', "bytea", rb"\x00ff10"),
    (b'"AA=="', "bytea", rb"\x00"),
    (b'""', "bytea", b""),
    (rb'"\\x00ff10"', "bytea", rb"\x00ff10"),
    (rb'"a\\000b"', "bytea", rb"a\000b"),
    (rb'["AP8Q", "\\x00", null]', "bytea[]", rb'{"\\x00ff10","\\x00",NULL}'),
    (b"[]", "int4[]", b"{}"),
    (b"[1, null, 3]", "int4[]", b'{"1",NULL,"3"}'),
    (b"[[1],[null]]", "int4[]", b'{{"1"},{NULL}}'),
    (b'["NULL", null, "", "a,b", "c\\\\\\""]', "text[]", rb'{"NULL",NULL,"","a,b","c\\\""}'),
    (b'["(1,1),(0,0)", null]', "box[]", b'{"(1,1),(0,0)";NULL}'),
    (b'"{1,2}"', "int4[]", b"{1,2}"),
    (b'[{"a": "b"}, [1, [2]], "x", null]', "jsonb[]", rb'{"{\"a\": \"b\"}","[1, [2]]","\"x\"",NULL}'),
    (b"[[1, 2]]", _DOCUMENTS, b'{"[1, 2]"}'),
    (b"[1]", _LIST_DOMAIN, b'{"1"}'),
    # Each element is a list by itself; the engine nests it as text inside the outer literal.
    (b"[[1, 2], [], [3]]", _LISTS, rb'{"{\"1\",\"2\"}","{}","{\"3\"}"}'),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "type_", "expected"), ENCODED)
def test_json_becomes_the_text_of_its_type(raw: bytes, type_: EngineType | str, expected: bytes | None) -> None:
    assert encode_parameter(raw, _BY_NAME[type_] if isinstance(type_, str) else type_, 1) == expected


REFUSED = [
    (b"[1]", "text", "invalid_parameter", "Parameter $3 is an array, but the statement expects text."),
    (b"{}", "int4[]", "invalid_parameter", "Parameter $3 is an object, but the statement expects int4[]."),
    (b"[{}]", "int4[]", "invalid_parameter", "Parameter $3 is an object, but the statement expects int4."),
    *((b'"%b"' % text, "bytea", "invalid_parameter", "Parameter $3 is of type bytea, and its string isn't base64.")
      for text in (b"A", b"AA", b"AA=", b"a b=", b"A-_=", b"AAAA\\n", b"AA==AAAA", "é".encode())),
    (b'"\\u0000"', "text", "null_character",
     "Parameter $3 contains a NUL character, which PostgreSQL can't store in text."),
    (b'["a\\u0000"]', "text[]", "null_character",
     "Parameter $3 contains a NUL character, which PostgreSQL can't store in text."),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "type_name", "code", "message"), REFUSED)
def test_json_that_does_not_fit_the_type_is_rejected(raw: bytes, type_name: str, code: str, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        encode_parameter(raw, _BY_NAME[type_name], 3)
    assert (raised.value.code, raised.value.message) == (code, message)


@pytest.mark.parametrize("depth", [7, 500, 5_000])
def test_more_dimensions_than_the_engine_has_are_refused(depth: int) -> None:
    with pytest.raises(RequestError) as raised:
        encode_parameter(b"[" * depth + b"]" * depth, _BY_NAME["int4[]"], 1)
    assert raised.value.code == "invalid_parameter"


@pytest.mark.parametrize(("raw", "expected"), [(b"null", False), (b"true", False), (b"-1.5", False), (b'"a"', True),
                                               (b"[]", True), (b"{}", True)])  # fmt: skip
def test_only_strings_arrays_and_objects_need_the_engines_type(raw: bytes, expected: bool) -> None:
    assert needs_type(raw) is expected
