"""The shell's prompt on a terminal, by prompt-toolkit: lines, history, completion and the editor."""

import os
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from plainsql.command.shell.completion import SchemaCompleter
from plainsql.command.shell.session import is_complete
from plainsql.command.terminal import say
from plainsql.settings import history_file

if TYPE_CHECKING:
    from plainsql.command.shell.session import Shell


def interact(shell: "Shell") -> None:
    """Reads and runs inputs until the user quits."""
    say("Type \\? for help, Ctrl-D to quit.")
    shell.completer = SchemaCompleter(shell.db, shell.commands)
    shell.completer.refresh()
    session = _session(shell)
    while not shell.is_over:
        try:
            text = _input(session, shell)
        except KeyboardInterrupt:
            continue
        except EOFError:
            break
        shell.run(text)
    shell.finish()


def _input(session: "PromptSession[str]", shell: "Shell") -> str:
    """The next input. After `\\e`, the editor opens with the last one, and Enter then runs what was saved."""
    if not shell.opens_editor:
        return session.prompt()
    shell.opens_editor = False

    def open_editor() -> None:
        get_app().current_buffer.open_in_editor()

    return session.prompt(default=shell.last_text, pre_run=open_editor)


def _session(shell: "Shell") -> "PromptSession[str]":
    keys = KeyBindings()

    @keys.add("enter", filter=Condition(lambda: not _is_choosing()))
    def _(event: KeyPressEvent) -> None:
        if is_complete(event.current_buffer.text):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    def _is_choosing() -> bool:
        state = session.default_buffer.complete_state
        return state is not None and state.current_completion is not None

    path = history_file()
    os.makedirs(os.path.dirname(path), exist_ok=True, mode=0o700)
    session: PromptSession[str] = PromptSession(
        message=lambda: shell.prompt,
        prompt_continuation=lambda width, _line, _wrapped: " " * (width - 3) + "-> ",
        history=FileHistory(path),
        completer=shell.completer,
        complete_while_typing=True,
        multiline=True,
        key_bindings=keys,
        enable_history_search=False,
        enable_open_in_editor=True,
        tempfile_suffix=".sql",
    )
    return session
