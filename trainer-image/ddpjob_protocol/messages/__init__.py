"""Messages between operator, rendezvous service, agents and training processes."""
