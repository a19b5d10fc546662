"""Converts training jobs of other operators into DDPJobs."""
