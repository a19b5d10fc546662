"""The local back end: the operator's core over processes instead of pods. No cluster, no root."""
