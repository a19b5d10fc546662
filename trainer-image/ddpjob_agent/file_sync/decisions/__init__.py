"""Decisions about replicas: pure."""
