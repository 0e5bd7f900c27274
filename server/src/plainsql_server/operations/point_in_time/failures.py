"""Failures of other parts, such as a full disk or a server that was killed, as errors that the command line can show.

raise failure_of("The restore", error) from error
"""

from plainsql_server.core.errors import EngineError, ServiceError, described


def failure_of(what: str, error: Exception) -> ServiceError:
    """The error itself if it is the service's; otherwise one that names what failed, and why. Of a group, the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ServiceError):
        return error
    return EngineError("restore_failed", f"{what} failed: {described(error)}")
