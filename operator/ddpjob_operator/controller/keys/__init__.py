"""The keys of operator and jobs."""
