"""What the service does on a cell as its administrator: provisioning, backups, moves, looking after what runs."""
