"""One connection to PostgreSQL: pipeline mode, exchanges, cancel requests, session cleanup and SQLSTATE mapping."""
