"""The training loop that stays in its processes while the membership changes."""
