"""The operator's web page: a list of jobs, and the page of each."""
