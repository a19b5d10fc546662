"""Replicas of the files that an unchanged script saves to, stored on other workers."""
