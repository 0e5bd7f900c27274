"""Restores to a point in time that customers ask for."""
