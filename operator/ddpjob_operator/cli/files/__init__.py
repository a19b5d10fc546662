"""The commands that read files of jobs."""
