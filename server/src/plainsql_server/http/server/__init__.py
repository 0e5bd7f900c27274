"""HTTP on the wire: connections, requests, responses, and errors as JSON. No routes here."""
