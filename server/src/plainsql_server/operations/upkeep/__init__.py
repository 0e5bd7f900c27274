"""Recurring work of an operator: scheduled backups, and what doctor checks about a service in production."""
