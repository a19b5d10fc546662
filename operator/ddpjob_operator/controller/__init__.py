"""The operator on a cluster: watches, work queue, reconciliation."""
