"""Doctor's checks of rights in the directory."""
