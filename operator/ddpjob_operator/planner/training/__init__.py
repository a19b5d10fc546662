"""The course of the training: the service's report as parts of the status. Pure."""
