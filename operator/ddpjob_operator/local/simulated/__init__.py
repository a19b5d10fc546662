"""Nodes, pods and the service, as processes on this machine."""
