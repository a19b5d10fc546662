"""Pods that fail, and what the operator does about it. Pure."""
