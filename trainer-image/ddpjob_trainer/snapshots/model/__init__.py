"""What a snapshot is and which one counts; no storage, no collectives."""
