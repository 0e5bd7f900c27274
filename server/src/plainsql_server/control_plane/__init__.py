"""The control plane: the rules for organizations, keys, sessions, databases and cells. Contains no SQL and no HTTP."""
