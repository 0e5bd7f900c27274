"""Running customers' SQL. Knows principals, databases and the engine; knows nothing of HTTP."""
