"""`ddpjob doctor`: checks that a cluster can run jobs."""
