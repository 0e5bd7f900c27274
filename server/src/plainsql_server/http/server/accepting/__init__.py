"""Accepts clients' connections: TLS handshakes, and the limits that hold before a client has shown its key."""
