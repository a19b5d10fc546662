"""Builds the Kubernetes objects of a job, and parses pods and Services. Pure."""
