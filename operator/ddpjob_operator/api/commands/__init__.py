"""The words of a command: what they run, and what they fix."""
