"""Observations to Prometheus metrics, on a port of their own that is not public.

Owns the names and labels of metrics. Labels come from our own lists (routes, codes, cells), never from a
customer, so their number is bounded.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from plainsql_server.core.observation import CellLoad, Observation, RequestFinished

# From a quarter of a millisecond, which a point lookup takes, to the longest deadline.
_BUCKETS_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

Loads = Callable[[], Iterable[CellLoad]]


class Metrics:
    """An exit for observations that counts them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("plainsql_requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self._seconds = Histogram(
            "plainsql_request_seconds", "Time a request took, by stage.", ["route", "stage"],
            buckets=_BUCKETS_S, registry=self.registry,
        )  # fmt: skip
        self._errors = Counter("plainsql_errors", "Requests that failed, by code.", ["code"], registry=self.registry)
        self._rows = Counter("plainsql_rows", "Rows sent to clients.", registry=self.registry)
        # Looking a child up by its labels costs more than counting; there are few of each.
        self._children: dict[tuple[str, int], Counter] = {}
        self._stages: dict[tuple[str, str], Histogram] = {}

    def __call__(self, observation: Observation) -> None:
        if isinstance(observation, RequestFinished):
            self._count(observation)

    def watch(self, loads: Loads) -> None:
        """Shows the pools' state whenever somebody asks."""
        self.registry.register(_CellCollector(loads))

    def serve(self, host: str, ports: Iterable[int]) -> int:
        """Serves the metrics on the first free port, and says which; each worker process takes one."""
        for port in ports:
            try:
                start_http_server(port, addr=host, registry=self.registry)
            except OSError:
                # Taken by another worker of ours: the next one is for us.
                continue
            return port
        raise OSError(f"no free port for metrics among {list(ports)}")

    def _count(self, finished: RequestFinished) -> None:
        route = finished.route
        counter = self._children.get((route, finished.status))
        if counter is None:
            counter = self._children[route, finished.status] = self._requests.labels(route, finished.status)
        counter.inc()
        self._observe(route, "total", finished.total_us)
        if finished.exec_us:
            self._observe(route, "engine", finished.exec_us)
            self._observe(route, "queue", finished.queue_us)
        if finished.row_count:
            self._rows.inc(finished.row_count)
        if finished.error_code is not None:
            self._errors.labels(finished.error_code).inc()

    def _observe(self, route: str, stage: str, duration_us: int) -> None:
        histogram = self._stages.get((route, stage))
        if histogram is None:
            histogram = self._stages[route, stage] = self._seconds.labels(route, stage)
        histogram.observe(duration_us / 1_000_000)


class _CellCollector(Collector):
    """The state of every cell's pools at the moment of asking."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads

    def collect(self) -> Iterator[Metric]:
        loads = list(self._loads())
        for name, text in (
            ("open_connections", "Engine connections open."),
            ("running", "Statements running."),
            ("waiting", "Requests waiting for a connection."),
            ("pools", "Databases and roles with a pool."),
        ):
            family = GaugeMetricFamily(f"plainsql_cell_{name}", text, labels=["cell"])
            for load in loads:
                family.add_metric([load.cell], getattr(load, name))
            yield family
