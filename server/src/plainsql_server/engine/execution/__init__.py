"""Running customers' SQL on a lent connection: statements, streams, transactions, and the service's own statements."""
