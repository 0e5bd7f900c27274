"""Statements on engine connections: how the lane sends them, and reads what arrives."""
