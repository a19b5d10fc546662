"""What a process tells its agent: steps, metrics, signs of life."""
