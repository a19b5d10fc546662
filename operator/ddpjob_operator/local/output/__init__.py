"""The screen of a local run: what the ranks print, the timeline, and a progress bar.

agents ──Unix socket──► receiver ─► view (lines, tracebacks) ─► screen ─► terminal or pipe
                                 timeline, bar (rate) ────────────┘
"""
