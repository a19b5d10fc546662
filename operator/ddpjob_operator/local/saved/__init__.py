"""The state that a local run finds and leaves, for the hints before and after the run."""
