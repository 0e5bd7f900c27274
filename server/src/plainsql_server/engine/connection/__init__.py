"""One connection to PostgreSQL: libpq, its exchanges, cancelling, cleaning, and what SQLSTATEs mean."""
