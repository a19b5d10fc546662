"""The ends of the command: their failures, and the reports to the service."""
