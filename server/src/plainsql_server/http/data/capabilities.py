"""GET /capabilities and GET /capabilities/{name}: what the service can do, and a probe that tests it.

The capabilities are listed in `data_plane/diagnostics/capabilities.py`. The limits are those that the code enforces.
"""

from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from plainsql_server import VERSION
from plainsql_server.core.principal import Principal
from plainsql_server.data_plane.diagnostics.capabilities import CAPABILITIES, Capabilities
from plainsql_server.http.server.answers import Microseconds, RequestId, Success
from plainsql_server.http.server.requests import Request
from plainsql_server.http.server.responses import Response, json_response
from plainsql_server.limits.tiers import TIERS


class TierLimits(msgspec.Struct, kw_only=True):
    """The limits of your tier. Null means no limit."""

    tier: str
    requests_per_minute: int | None
    statement_bytes: int
    request_bytes: int
    transaction_statements: int
    verified_reads: int
    parameters: int
    result_rows: int
    result_bytes: int
    statement_timeout_ms: int
    transaction_timeout_ms: int
    stream_life_ms: int
    concurrent_statements: int
    databases: int | None
    branches_per_day: int


class CapabilityEntry(msgspec.Struct, kw_only=True):
    """One capability."""

    supported: bool
    since: str | None
    description: str


class CapabilitiesAnswer(msgspec.Struct, kw_only=True):
    """The capabilities of the service, and your limits."""

    success: Success = True
    version: Annotated[str, Meta(description="The version of the service.")] = VERSION
    limits: TierLimits
    capabilities: Annotated[dict[str, CapabilityEntry], Meta(description="The capabilities, by name.")]
    request_id: RequestId


class ProbeAnswer(msgspec.Struct, kw_only=True):
    """The result of a probe."""

    success: Success = True
    name: Annotated[str, Meta(description="The name of the capability.")]
    supported: Annotated[bool, Meta(description="Whether the capability works as documented.")]
    probed: Annotated[bool, Meta(description="Always true.", extra_json_schema={"const": True})] = True
    latency_us: Annotated[Microseconds, Meta(description="How long the probe took, in microseconds.")]
    evidence: Annotated[dict[str, Any], Meta(description="What the probe observed. The fields depend on the probe.")]
    request_id: RequestId


class CapabilitiesRoutes:
    """The handlers of both routes."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities

    async def get(self, request: Request, principal: Principal) -> Response:
        answer = CapabilitiesAnswer(
            limits=TierLimits(tier=principal.tier, **asdict(TIERS[principal.tier])),
            capabilities={
                name: CapabilityEntry(
                    supported=capability.supported, since=capability.since, description=capability.description
                )
                for name, capability in CAPABILITIES.items()
            },
            request_id=request.id,
        )
        return json_response(200, answer)

    async def get_one(self, request: Request, principal: Principal) -> Response:
        name = request.path_parameter
        probed = await self._capabilities.probe(principal, request.header(b"x-database"), name)
        answer = ProbeAnswer(
            name=name,
            supported=probed.finding.supported,
            latency_us=probed.latency_us,
            evidence=probed.finding.evidence,
            request_id=request.id,
        )
        return json_response(200, answer)
