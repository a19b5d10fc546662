"""The rendezvous service of a job: it registers workers, forms memberships, serves stores."""
