"""Snapshots of a model whose ranks hold parts of its tensors (DTensor: FSDP2, tensor parallel)."""
