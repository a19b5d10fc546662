"""The save of a snapshot while training continues, by the ranks that may write."""
