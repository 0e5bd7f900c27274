"""`plainsql-server directory …`: archive the directory, and bring it and the cells to agree after a restore."""
