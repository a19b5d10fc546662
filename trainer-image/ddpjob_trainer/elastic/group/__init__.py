"""The process groups of one process: formed, broken, left, one after the other."""
