"""The training state of one process, and the undo of a step that broke."""
