"""Converts values, rows and parameters between PostgreSQL's text format and JSON or CSV. Opens no connections."""
