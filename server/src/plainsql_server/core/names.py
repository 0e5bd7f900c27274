"""The format of names that customers choose, where more than one package needs it."""

import re

# ASCII, because the name is sent in a header and in URLs. At most 63 characters, as in PostgreSQL.
DATABASE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")
# The form of a database's id. Requests name a database by either, so no new one may have such a name.
DATABASE_ID = re.compile(r"db_[0-9a-f]{32}\Z")
