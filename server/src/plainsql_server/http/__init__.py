"""HTTP: the server on the wire, the application, and the handlers of both planes. No SQL and no rules here."""
