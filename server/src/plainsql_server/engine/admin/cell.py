"""What provisioning and a cell's configuration files must agree on. Imports nothing, so that `dev` starts fast."""

# Files that one backend may write for sorts and hashes. It is the superuser's to set, so tenants cannot raise it.
TEMP_FILE_LIMIT = "1GB"

# Reads the leader's files when a server that led before is brought back in line. It may do nothing else.
REWIND_ROLE = "plainsql_rewind"
