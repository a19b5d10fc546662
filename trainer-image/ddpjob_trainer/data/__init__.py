"""Choice, order and number of the samples that each process trains on."""
