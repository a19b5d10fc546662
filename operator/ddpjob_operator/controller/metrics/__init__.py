"""The metrics of the operator and of its jobs, for Prometheus.

`catalogue` defines all of them; docs/metrics.md is generated from it.
"""

from ddpjob_operator.controller.metrics.instruments import InstrumentedApiServer, Metrics

__all__ = ["InstrumentedApiServer", "Metrics"]
