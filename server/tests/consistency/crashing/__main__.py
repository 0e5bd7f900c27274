"""The service's command line, whose data plane is made by this package."""

from plainsql_server import assembly
from plainsql_server.cli import main

# Workers look for their application in the module of this name. A worker must load it late: if it takes long
# before, it is considered dead.
assembly.__name__ = "server.tests.consistency.crashing"
main()
