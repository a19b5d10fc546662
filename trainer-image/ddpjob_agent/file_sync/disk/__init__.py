"""Files and replicas on this worker's own disk."""
