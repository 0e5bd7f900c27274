"""Constants that provisioning and a cell's configuration files share. Imports nothing, so that `dev` starts fast."""

# The limit for a backend's temporary files (sorts, hashes). Only a superuser can set it, so tenants cannot raise it.
TEMP_FILE_LIMIT = "1GB"

# The role with which pg_rewind reads the primary's files to rejoin a former primary. It may do nothing else.
REWIND_ROLE = "plainsql_rewind"

# The role that a receiver of a cell's WAL logs in as, and its replication slot. It may do nothing else.
STREAM_ROLE = "plainsql_stream"

# The group of all roles that a data plane logs in as. A cell's pg_hba.conf admits the holder of a data plane's
# certificate as members of this group only. The group has no privileges.
TENANTS_ROLE = "plainsql_tenants"

# The database that tenants' databases are copied from.
TEMPLATE = "plainsql_template"

# The database for administrative connections. Tenants cannot connect to it.
MAINTENANCE_DATABASE = "postgres"

# The file in a cell's data folder that says how much is free on its disk: free and all bytes, and the end of the line.
DISK_FILE = "plainsql_disk"
