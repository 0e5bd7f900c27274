"""Handlers of the control plane's routes."""
