"""The control of a loop by its script: stops, metrics, schedulers, evaluations, and breaks."""
