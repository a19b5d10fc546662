"""HTTP client of the rendezvous service."""
