"""Transfer of the newest state from the processes that have it to the others."""
