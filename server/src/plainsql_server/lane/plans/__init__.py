"""What the bodies of requests ask for: bodies that are known up to their parameters, and what is the same each time."""
