"""The service's own certificate authorities: one for clients of cells, one for servers. `plainsql-server pki`."""
