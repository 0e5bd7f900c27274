"""Runs a plane under uvicorn: a parent process starts the workers and replaces those that die."""

import sys
from contextlib import suppress

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess


class Workers(Multiprocess):
    """Processes that share a port. A worker that dies or no longer responds to its parent is replaced."""

    def keep_subprocess_alive(self) -> None:
        """Replaces dead workers, as uvicorn does, but without waiting for a dead worker's reply.

        If a worker dies after the parent has pinged it, uvicorn would wait for the full ping timeout and replace no
        other worker meanwhile. The cause is that the parent keeps a copy of the worker's end of their pipe. Without
        that copy, the pipe closes when the worker dies.
        """
        for process in self.processes:
            process.child_conn.close()
        super().keep_subprocess_alive()


def serve(config: uvicorn.Config) -> None:
    """Serves until it is asked to stop. Exits the process if it cannot start."""
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):
        if config.workers > 1:
            Workers(config, [config.bind_socket()]).run()
            return
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)
