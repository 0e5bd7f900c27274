"""PlainSQL: SQL over plain HTTPS, on PostgreSQL."""

VERSION = "0.61.0"
