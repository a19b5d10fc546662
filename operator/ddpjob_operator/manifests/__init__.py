"""Kubernetes objects that the operator writes, and what it reads in them. Pure."""
