"""Decides the actions, the status and the events of a job from an observation. Pure."""
