"""Which connection a request gets and when: pools, the admission queue, and the leading server of a cell."""
