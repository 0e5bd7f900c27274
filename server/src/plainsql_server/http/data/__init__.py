"""Handlers of the data plane's routes."""
