"""What operator, agent and trainer library share: variables, exit codes, and all that travels.

Standard library only, Python 3.9 or newer. Opens no file and no socket.
"""
