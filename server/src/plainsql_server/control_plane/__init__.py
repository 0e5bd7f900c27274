"""The control plane: the rules about organizations, keys, databases and cells. No SQL and no HTTP here."""
