"""The handlers of the control plane's routes."""
