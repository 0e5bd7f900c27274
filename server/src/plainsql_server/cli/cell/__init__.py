"""`plainsql-server cell …`: adding and changing cells, their configuration files, their guard."""
