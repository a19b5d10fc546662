"""The agent in a worker's pod. It runs the user's command for the current membership."""
