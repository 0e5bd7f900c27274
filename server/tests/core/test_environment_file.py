"""Environment files are read as systemd reads them. The values are those of a running systemd 252, compared by hand."""

import pytest

from plainsql_server.core.environment_file import EnvironmentFileError, parse_environment_file

pytestmark = pytest.mark.unit

CASES = {
    "A=b\n": {"A": "b"},
    "A=b": {"A": "b"},
    "A=b\r\nC=d\r\n": {"A": "b", "C": "d"},
    "A=\nB=\n": {"A": "", "B": ""},
    "  A  =  b c  \n": {"A": "b c"},
    "A=b # c\n": {"A": "b # c"},
    "# A=b\n; C=d\n\nE=f\n": {"E": "f"},
    "A=b\nA=c\n": {"A": "c"},
    "A='b  c'  \n": {"A": "b  c"},
    "A=' b '\n": {"A": " b "},
    'A="b c"\n': {"A": "b c"},
    "A=\"b\"'c'd\n": {"A": "bcd"},
    "A='b' 'c'\n": {"A": "bc"},
    "A=b'c'\n": {"A": "b'c'"},
    "A='b\\c'\n": {"A": "b\\c"},
    'A="b\\"c\\\\d\\$e\\`f\\g"\n': {"A": 'b"c\\d$e`f\\g'},
    "A=b\\\nc\n": {"A": "bc"},
    "A=b\\ \n": {"A": "b "},
    "A=b\\nc\n": {"A": "bnc"},
    'A="b\\\nc"\n': {"A": "bc"},
    "A='b\nc'\n": {"A": "b\nc"},
    "A=$HOME ${B} `c`\n": {"A": "$HOME ${B} `c`"},
    "A=host=x dbname='y z'\n": {"A": "host=x dbname='y z'"},
    "A=\"host=x dbname='y z'\"\n": {"A": "host=x dbname='y z'"},
    "A==b\n": {"A": "=b"},
    "A=ü\n": {"A": "ü"},
}


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_systemd(text: str) -> None:
    assert parse_environment_file(text) == CASES[text]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=b\nnonsense\n", "Line 2 is not of the form"),
        ("export A=b\n", "'export A' is not the name of a variable"),
        ("1A=b\n", "'1A' is not the name"),
        ("=b\n", "'' is not the name"),
        ("A='b\nc\n", "Line 1: a quote is not closed"),
        ('A="b\n', "Line 1: a quote is not closed"),
        ("# c \\\nA=b\n", "Line 1: a comment must not end with a backslash"),
        ("A=b\0\n", "Line 1: a value can't contain a null character"),
    ],
)
def test_what_systemd_would_ignore_is_an_error(text: str, message: str) -> None:
    with pytest.raises(EnvironmentFileError, match=message):
        parse_environment_file(text)
