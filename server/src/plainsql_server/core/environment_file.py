"""Reads environment files as systemd does, so that commands see the variables that the units see.

    parse_environment_file("PLAINSQL_DATA_PORT=8400\\n")

The syntax is that of `EnvironmentFile=` in systemd.exec(5). A line is `NAME=value`. Values may be quoted, as a whole or
in parts. A backslash escapes the next character, and joins lines at the end of one. Nothing is expanded: `$` is an
ordinary character. Lines that begin with `#` or `;` are comments.

systemd ignores lines that it does not understand. Here they are errors, because a setting that is missing without a
word is hard to find.
"""

import re

_BLANK = " \t\n\r"
_LINE_ENDS = "\n\r"
# Within double quotes, a backslash stays unless one of these follows.
_ESCAPED_IN_QUOTES = '"\\`$'
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class EnvironmentFileError(Exception):
    """A line that systemd would ignore, or that its versions read differently. The message has its number."""


def parse_environment_file(text: str) -> dict[str, str]:
    """Return the variables. If one is set twice, the last value counts. Raises EnvironmentFileError."""
    # The end of the text ends the last line.
    text += "\n"
    variables: dict[str, str] = {}
    position = 0
    while position < len(text):
        if text[position] in _BLANK:
            position += 1
        elif text[position] in "#;":
            position = _after_comment(text, position)
        else:
            name, start = _read_name(text, position)
            variables[name], position = _read_value(text, start)
    return variables


def _after_comment(text: str, position: int) -> int:
    end = _line_end(text, position)
    if text[end - 1] == "\\":
        # Before version 254, the comment of systemd continues on the next line.
        raise EnvironmentFileError(f"Line {_line(text, position)}: a comment must not end with a backslash.")
    return end


def _read_name(text: str, position: int) -> tuple[str, int]:
    end = _line_end(text, position)
    name, equals, _ = text[position:end].partition("=")
    if not equals:
        raise EnvironmentFileError(f"Line {_line(text, position)} is not of the form NAME=value.")
    if not _NAME.match(name.rstrip(_BLANK)):
        raise EnvironmentFileError(f"Line {_line(text, position)}: {name!r} is not the name of a variable.")
    return name.rstrip(_BLANK), position + len(name) + 1


def _read_value(text: str, position: int) -> tuple[str, int]:
    """Read up to the end of the line. Blanks around unquoted parts are removed."""
    begin, value = position, ""
    while text[position] not in _LINE_ENDS:
        if text[position] in "'\"":
            quoted, position = _read_quoted(text, position)
            value += quoted
        elif text[position] in _BLANK:
            position += 1
        else:
            # A quote within an unquoted part is an ordinary character.
            unquoted, position = _read_unquoted(text, position)
            value += unquoted
    if "\0" in value:
        raise EnvironmentFileError(f"Line {_line(text, begin)}: a value can't contain a null character.")
    return value, position


def _read_unquoted(text: str, position: int) -> tuple[str, int]:
    value, kept = "", 0
    while text[position] not in _LINE_ENDS:
        if text[position] == "\\":
            position += 1
            if position == len(text) - 1:
                # The end of the file, and not a line that continues.
                break
            value += "" if text[position] in _LINE_ENDS else text[position]
            kept = len(value)
        else:
            value += text[position]
            kept = kept if text[position] in _BLANK else len(value)
        position += 1
    return value[:kept], position


def _read_quoted(text: str, position: int) -> tuple[str, int]:
    begin, quote, value = position, text[position], ""
    position += 1
    while position < len(text) and text[position] != quote:
        if quote == '"' and text[position] == "\\":
            position += 1
            value += _unescaped(text[position : position + 1])
        else:
            value += text[position]
        position += 1
    if position >= len(text) - 1:
        raise EnvironmentFileError(f"Line {_line(text, begin)}: a quote is not closed.")
    return value, position + 1


def _unescaped(character: str) -> str:
    if character in _ESCAPED_IN_QUOTES:
        return character
    return "" if character == "\n" else f"\\{character}"


def _line_end(text: str, position: int) -> int:
    while text[position] not in _LINE_ENDS:
        position += 1
    return position


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
