"""Strict parsers of messages from outside: a value out of range is refused."""
