"""The agent in a worker's pod: runs the user's command as its membership demands."""
