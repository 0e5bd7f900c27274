"""Limits: what each tier may use, and the rate limiter. Imports only `core`."""
