"""The processes of a plane that serve, and the one that starts them and replaces those that die.

Owns how a plane is served, by uvicorn. Refuses to know what is served.
"""

import sys
from contextlib import suppress

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess


class Workers(Multiprocess):
    """Processes that share a port, each replaced when it dies or does not answer its parent any more."""

    def keep_subprocess_alive(self) -> None:
        """Replaces who is gone, as uvicorn does, and without waiting for the last word of somebody who died.

        Who is asked by its parent and dies before it answers would be awaited for as long as a silent one may be, and
        nobody else be replaced meanwhile. The parent has a copy of each worker's end of the pipe between them; without
        that copy, the pipe ends when the worker does.
        """
        for process in self.processes:
            process.child_conn.close()
        super().keep_subprocess_alive()


def serve(config: uvicorn.Config) -> None:
    """Serves until it is told to stop. Ends the process if it cannot begin."""
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):
        if config.workers > 1:
            Workers(config, [config.bind_socket()]).run()
            return
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)
