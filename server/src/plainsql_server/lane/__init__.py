"""The fast lane: ordinary requests for which everything is at hand, without a task, a coroutine or a parser.

One callback takes a request from the client's socket to the engine's, another one its answer back. The ordinary path
teaches the lane: it knows a head that the parser has read before on the same connection (`known_head`, `learning`), a
body that msgspec has decoded before up to its parameters (`plans`), and a caller and a database that are cached
(`caller`), whose organization may need a `permit`. An exchange runs the statement or the transaction on an engine
connection, and reads only whole messages (`engine`); `answer` writes the response, `report` logs and counts it.
Transactions have plans and answers of their own; a `route` has what belongs together. A `track` puts these together
for one HTTP connection: its `wire` has the bytes, its `intake` the request. The `lane` holds what all connections
share. What does not take it, or not to its end, has one of the `reasons`: it takes the ordinary path from its start,
or is handed over to it in the middle (`handover`). Most of its modules are extension modules; without them there is
no lane, and nothing else changes.
"""
