"""Warm start: a fork server that has imported torch forks torchrun and the training processes.

    agent ──starts────────► fork server: imports torch, then waits; one thread, no device
      │                       │ fork                                     │ fork
      └─requests, reaps─────► torchrun (a child of the agent) ─requests─► training processes

The package does only the work of `python SCRIPT` and `python -m MODULE`, without the imports;
torchrun does the rest. If a fork would behave differently, the process starts cold.
"""
