"""The state of the rendezvous service, and functions of (state, message, now) on it.

May not: open sockets, read a clock, start threads or import asyncio.
"""
