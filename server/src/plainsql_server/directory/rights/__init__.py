"""Who may do what in the directory: the roles of the planes and of operators, with the least rights each needs."""
