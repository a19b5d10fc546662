"""Connections of an agent: to the rendezvous service, to other workers, and its ports."""
