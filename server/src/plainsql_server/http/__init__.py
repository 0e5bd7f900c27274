"""The ASGI edge: routes, authentication, error to status, JSON. No SQL, no rules."""
