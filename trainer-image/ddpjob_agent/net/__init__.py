"""The connection between an agent and the rendezvous service."""
