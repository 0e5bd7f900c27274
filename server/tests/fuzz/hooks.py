"""What schemathesis must know about the service beyond the OpenAPI documents; loaded by its command line.

Owns the credentials of its requests, which it would otherwise revoke, and values of our own formats.
"""

import base64
import os
import ssl
from typing import Any

import httpx
import schemathesis
from hypothesis import strategies as st

KEY = os.environ["PLAINSQL_FUZZ_KEY"]
KEY_ID = os.environ["PLAINSQL_FUZZ_KEY_ID"]
CONTROL_URL = os.environ["PLAINSQL_FUZZ_CONTROL_URL"]
_http = httpx.Client(verify=ssl.create_default_context(cafile=os.environ["PLAINSQL_FUZZ_CA_FILE"]), timeout=30)
# These need a session, and one of them ends it.
SESSION_ROUTES = {("POST", "/v1/session/refresh"), ("DELETE", "/v1/session")}

_LONG_BENCHMARKS = {str(iterations) for iterations in range(3, 1_001)}

_printable = st.characters(codec="utf-8", exclude_categories=["C", "Z"])
schemathesis.openapi.format("title", st.text(_printable, min_size=1, max_size=100))
schemathesis.openapi.format(
    "cursor",
    # A position that every list understands.
    st.dates().map(lambda day: base64.urlsafe_b64encode(f"{day} db_0".encode()).decode().rstrip("=")),
)


@schemathesis.auth(refresh_interval=None)
class Credential:
    """The key, or where that has no place a session."""

    def get(self, _: "schemathesis.Case[Any]", __: schemathesis.AuthContext) -> str:
        return KEY

    def set(self, case: "schemathesis.Case[Any]", secret: str, _: schemathesis.AuthContext) -> None:
        if (case.method, case.path) in SESSION_ROUTES:
            secret = new_session()
        case.headers["Authorization"] = f"Bearer {secret}"


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: "schemathesis.Case[Any]", kwargs: dict[str, Any]) -> None:
    if case.path_parameters and case.path_parameters.get("id") == KEY_ID:
        # The key that all requests are made with is to last.
        case.path_parameters["id"] = "key_0"
    if case.path == "/bench" and str((case.query or {}).get("iterations")) in _LONG_BENCHMARKS:
        # As valid, and sooner over.
        case.query["iterations"] = "2"


def new_session() -> str:
    made = _http.post(f"{CONTROL_URL}/v1/session", headers={"Authorization": f"Bearer {KEY}"})
    return str(made.json()["session"]["token"])
