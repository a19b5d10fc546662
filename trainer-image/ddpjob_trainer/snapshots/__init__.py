"""Snapshots of the training state: their times, writers, and the choice of the one to load."""
