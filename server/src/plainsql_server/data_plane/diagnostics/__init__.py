"""Diagnostics that run in a customer's database on request: probes, the benchmark and the storage test."""
