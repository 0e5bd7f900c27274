"""Runs customers' SQL. It knows principals, databases and the engine, but not HTTP."""
