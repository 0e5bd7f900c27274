"""Benchmarks: the service beside the bare engine, on the same PostgreSQL and in the same run."""
