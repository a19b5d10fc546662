"""The training loop whose processes survive a change of the membership."""
