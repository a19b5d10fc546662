"""The local back end: the operator's core over processes instead of pods. Needs no cluster and no root."""
