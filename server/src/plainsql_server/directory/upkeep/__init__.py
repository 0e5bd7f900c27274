"""What the directory stores about the upkeep of the service."""
