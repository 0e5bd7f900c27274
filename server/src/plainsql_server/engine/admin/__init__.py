"""What the service does on a cell as its admin: provisioning, backups, moves, monitoring and reaping."""
