"""From a call to bytes on a socket: the protocol, retries, HTTP without sockets, and both clients' connections."""
