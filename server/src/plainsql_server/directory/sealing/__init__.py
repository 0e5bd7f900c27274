"""Record secrets in the directory, sealed with keys that the directory does not hold."""
