"""Operating the service: status, diagnosis, backups, restores, moves and upgrades. The commands in `cli/` call this."""
