"""The HTTP server: connections, requests, responses, and errors as JSON. Routes are in `http/app`."""
