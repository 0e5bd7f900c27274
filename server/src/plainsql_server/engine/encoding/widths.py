"""The maximum size of a row, derived from its column types. If one column's type is unbounded, so is the row."""

from psycopg.pq.abc import PGresult

# The maximum length of a value as text, by type OID.
_BYTES_OF = {
    16: 1,  # bool
    18: 4,  # "char"
    20: 20,  # int8
    21: 6,  # int2
    23: 11,  # int4
    26: 10,  # oid
    700: 15,  # float4
    701: 24,  # float8
    1082: 16,  # date
    1083: 16,  # time
    1114: 32,  # timestamp
    1184: 40,  # timestamptz
    2950: 36,  # uuid
}
_OF_SO_MANY_CHARACTERS = (1042, 1043)  # char(n), varchar(n)
_HEADER = 4
# The maximum in UTF-8.
_BYTES_A_CHARACTER = 4


def widest_row_bytes(result: PGresult) -> int | None:
    """The maximum number of bytes in a row of this result, or None if a column is unbounded."""
    total = 0
    for column in range(result.nfields):
        width = _width(result.ftype(column), result.fmod(column))
        if width is None:
            return None
        total += width
    return total


def _width(oid: int, modifier: int) -> int | None:
    if oid in _OF_SO_MANY_CHARACTERS and modifier > _HEADER:
        return (modifier - _HEADER) * _BYTES_A_CHARACTER
    return _BYTES_OF.get(oid)
