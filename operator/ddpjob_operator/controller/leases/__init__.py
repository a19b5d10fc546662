"""Leases: which operator writes, and which nodes are alive."""
