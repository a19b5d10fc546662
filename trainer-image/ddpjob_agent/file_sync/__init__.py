"""Copies of the files that an unchanged script saves to, kept on other workers."""
