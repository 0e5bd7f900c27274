"""Restores a database as it was at a moment, from the continuous archive of its cell."""
