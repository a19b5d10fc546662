"""The rendezvous service of a job: workers register, memberships are formed, c10d stores are served."""
