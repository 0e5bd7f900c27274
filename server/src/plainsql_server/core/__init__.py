"""The types that all other packages share. Uses only the standard library and imports no other package."""
