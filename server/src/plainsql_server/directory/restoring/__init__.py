"""Restores to a point in time that customers ask for, and the workers that carry them out, in the directory."""
