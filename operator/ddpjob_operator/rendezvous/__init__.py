"""HTTP to the rendezvous service of a job."""
