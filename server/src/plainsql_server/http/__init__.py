"""HTTP: the server, the application, and the handlers of both planes. SQL and business rules are elsewhere."""
