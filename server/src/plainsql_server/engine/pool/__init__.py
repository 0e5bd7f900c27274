"""Which connection a request gets, and when: pools, the admission queue, and the search for a cell's primary."""
