"""The contents of a snapshot and the rules that select one; no storage, no collectives."""
