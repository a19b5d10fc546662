"""How the newest state gets from the processes that have it to those that do not."""
