"""Branches in the directory, and the holds on their parents while they are copied."""
