"""`plainsql-server pki …`: the service's own certificate authorities."""
