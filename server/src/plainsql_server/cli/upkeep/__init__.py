"""The operator's commands for a timer."""
