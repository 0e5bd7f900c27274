import pytest

from plainsql_server.http.server.accept import preferred

pytestmark = pytest.mark.unit

SSE, NDJSON, CSV = b"text/event-stream", b"application/x-ndjson", b"text/csv"
OFFERS = (SSE, NDJSON, CSV)


@pytest.mark.parametrize(
    ("accept", "stream_format"),
    [
        (None, None),
        (b"", None),
        (b"*/*", None),
        (b"application/json", None),
        (b"text/html", None),
        (b"text/*", None),
        (SSE, SSE),
        (NDJSON, NDJSON),
        (CSV, CSV),
        (b"Text/Event-Stream", SSE),
        (b"text/csv; charset=utf-8", CSV),
        # JSON and a stream with the same quality: JSON.
        (b"application/json, text/event-stream", None),
        (b"text/event-stream, application/json", None),
        # JSON by a wildcard only, which is no better.
        (b"text/event-stream, */*", SSE),
        (b"text/csv, */*;q=0.8", CSV),
        (b"text/csv;q=0.5, */*", None),
        (b"text/csv;q=0.5, application/*;q=0.4", CSV),
        # By their qualities.
        (b"application/json;q=0.5, text/event-stream", SSE),
        (b"application/json, text/event-stream;q=0.9", None),
        (b"text/event-stream;q=0.5, application/x-ndjson;q=0.7", NDJSON),
        (b"text/event-stream;q=0", None),
        (b"text/event-stream;q=0, text/csv;q=0.1", CSV),
        (b"text/event-stream ; Q=0.5 , application/x-ndjson ; q = 0.7", NDJSON),
        (b"text/event-stream;q=high", None),
        (b"text/event-stream;q=2", None),
        (b",, ;q=1,text/csv", CSV),
    ],
)
def test_a_client_gets_a_stream_only_where_it_prefers_one(accept: bytes | None, stream_format: bytes | None) -> None:
    assert preferred(accept, OFFERS, must=False) == stream_format


@pytest.mark.parametrize(
    ("accept", "stream_format"),
    [
        (None, SSE),
        (b"*/*", SSE),
        (b"application/json", SSE),
        (b"text/event-stream;q=0", SSE),
        (b"text/csv", CSV),
        (b"application/json, text/csv;q=0.1", CSV),
        (b"application/x-ndjson, text/csv", NDJSON),
    ],
)
def test_with_a_hint_the_header_only_chooses_the_format(accept: bytes | None, stream_format: bytes) -> None:
    assert preferred(accept, OFFERS, must=True) == stream_format
