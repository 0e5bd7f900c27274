"""What processes share in the directory: the list of those that run, with their shares, and the counts of permits."""
