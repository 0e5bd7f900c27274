"""The handlers of the data plane's routes."""
