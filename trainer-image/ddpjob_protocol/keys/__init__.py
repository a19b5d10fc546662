"""The keys of a job, and the proofs that are made with them."""
