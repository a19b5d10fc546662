"""What to do next, and what to report, given what was observed. Pure."""
