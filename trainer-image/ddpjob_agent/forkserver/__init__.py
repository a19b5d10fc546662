"""Warm start: torchrun and its training processes are forked from a parent that knows torch.

    agent ──starts──► parent: imports torch, then waits; one thread, no device
      │                 │ fork                                 │ fork
      └─asks, reaps───► torchrun (a child of the agent) ─asks─► training processes

Only what `python SCRIPT` and `python -m MODULE` do is done here, without the imports; everything
that torchrun does stays torchrun's. Where that would not be the same, all is started as ever.
"""
