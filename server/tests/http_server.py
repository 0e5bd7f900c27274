"""Serves an application in the test's own process, on a free port, with our protocol.

server = await started(application, log_level="critical")
…
await server.shutdown()
"""

from typing import Any

import uvicorn

from plainsql_server.http.server.protocol import FastPathProtocol


async def started(application: Any, **options: Any) -> uvicorn.Server:
    """A server that listens."""
    config = uvicorn.Config(
        application, interface="asgi3", port=0, http=FastPathProtocol, ws="none", proxy_headers=False,
        **{"lifespan": "on", "log_level": "warning", **options},
    )  # fmt: skip
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    return server


def port_of(server: uvicorn.Server) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port
