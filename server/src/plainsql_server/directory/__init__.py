"""The directory: the service's metadata in PostgreSQL, one module per noun. Imports only core; contains no rules."""
