"""What a local run records and shows."""
