"""Branches on the command line: creating one, and comparing its schema with its parent's."""
