"""Names that customers give, as far as more than one room must know their shape.

Owns the shape of a database's name. Refuses to know whether there is such a database.
"""

import re

# It travels in a header and a URL, so it is plain ASCII; 63 is the engine's own longest name.
DATABASE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")
