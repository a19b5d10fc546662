"""Shared by operator, agent and trainer library: variables, exit codes and messages.

Standard library only, Python 3.9 or newer. Opens no file and no socket.
"""
