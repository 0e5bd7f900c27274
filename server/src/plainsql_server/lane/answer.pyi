from plainsql_server.lane.engine.exchange import Exchange

class Answer:
    def written(
        self, exchange: Exchange, request_id: bytes, server_headers: list[tuple[bytes, bytes]], more_headers: bytes
    ) -> bytes: ...
