"""Values, rows and parameters between PostgreSQL's text and JSON or CSV. No connections here."""
