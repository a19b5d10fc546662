"""The operator on a cluster: watches, a work queue, reconciliation."""
