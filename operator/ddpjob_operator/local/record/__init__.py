"""The record of a local run, and its page."""
