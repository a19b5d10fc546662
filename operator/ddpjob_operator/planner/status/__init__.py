"""The status of a job: conditions, warnings and events. Pure."""
