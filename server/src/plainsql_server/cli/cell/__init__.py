"""`plainsql-server cell …`: add and change cells, write their configuration files, run the guard."""
