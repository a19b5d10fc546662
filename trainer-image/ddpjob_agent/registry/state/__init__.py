"""The state of the rendezvous service, and its parts."""
