"""Who trains together, and from when. Pure."""
