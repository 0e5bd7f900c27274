"""Interactive transactions: your code runs between the statements, and nothing stays open in the service.

`unit.py` remembers what a transaction ran and decides what to send. `session.py` sends it, for the blocking and the
asyncio client alike. `texts.py` looks at SQL text. Nothing here touches a socket.
"""
