"""Rules for failures, and the errors that other failures cause."""
