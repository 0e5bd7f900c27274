"""Runs tenants' SQL on a leased connection: statements, streams, transactions; and the service's own statements."""
