"""Sockets, ports and file descriptors; nothing here knows a message."""
