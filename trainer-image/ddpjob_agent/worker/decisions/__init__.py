"""Decisions of an agent: pure."""
