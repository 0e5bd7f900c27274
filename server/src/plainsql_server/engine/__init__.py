"""PostgreSQL through libpq. Knows nothing of HTTP, keys or organizations' rules."""
