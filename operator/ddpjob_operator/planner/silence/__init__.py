"""Service and workers that send nothing, and what the operator does about it. Pure."""
