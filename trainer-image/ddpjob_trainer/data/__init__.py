"""Which samples each process trains on, in which order, and how many."""
