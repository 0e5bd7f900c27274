"""A data plane with a watch on its event loop: `python -m server.tests.watched_loop data`.

On SIGUSR1 it writes to the file PLAINSQL_TEST_LOOP_FILE: the most processor time that the loop's thread spent without a
look at the clock since the last signal, and what the process spent in all. Processor time, because others may use the
machine, too.
"""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from plainsql_server.cli import main
from plainsql_server.http.app.application import Application
from plainsql_server.http.server.requests import Receive, Send

_EVERY_S = 0.001


class Watch:
    """How long the loop was held."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._reports = 0
        self._began_s = 0.0
        self._file = Path(os.environ["PLAINSQL_TEST_LOOP_FILE"])

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._report)
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(_EVERY_S)
            if self._reports:
                # This time is the watch's own.
                self._reports, self._longest_s, self._began_s = 0, 0.0, time.process_time()
            else:
                self._longest_s = max(self._longest_s, time.thread_time() - before_s)

    def _report(self) -> None:
        self._reports += 1
        content = json.dumps({"held_s": self._longest_s, "spent_s": time.process_time() - self._began_s})
        made = self._file.with_suffix(".new")
        made.write_text(content)
        made.rename(self._file)


_live = Application._live


async def _watched(self: Application, receive: Receive, send: Send) -> None:
    watching = asyncio.create_task(Watch().run())
    try:
        await _live(self, receive, send)
    finally:
        watching.cancel()


if __name__ == "__main__":
    Application._live = _watched  # type: ignore[method-assign]
    sys.exit(main())
