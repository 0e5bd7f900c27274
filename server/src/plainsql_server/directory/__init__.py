"""The directory: our own metadata in PostgreSQL, one file per noun. Imports core alone; holds no rules."""
