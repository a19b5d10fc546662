"""Snapshots of the training state: when, by which rank, and which one is loaded."""
