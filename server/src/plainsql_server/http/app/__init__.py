"""The application: routes and their contracts, authentication, rate limits, OpenAPI."""
