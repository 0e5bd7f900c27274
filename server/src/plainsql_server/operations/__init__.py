"""The operator's view: what state the service is in, what ails it, and its backups. Commands of `cli/` print it."""
