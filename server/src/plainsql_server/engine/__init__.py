"""PostgreSQL through libpq. Contains no HTTP, API keys or tier rules."""
