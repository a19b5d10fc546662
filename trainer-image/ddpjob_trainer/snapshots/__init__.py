"""Snapshots of the training state: their times, their writers, and the choice of the one to load."""
