"""Defines the DDPJob, as users write it: its fields, defaults and rules."""

from ddpjob_operator.api.spec.job import DDPJob, DDPJobSpec

__all__ = ["DDPJob", "DDPJobSpec"]
