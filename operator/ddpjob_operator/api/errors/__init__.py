"""Translates pydantic's validation errors into problems in the terms of a job."""

from ddpjob_operator.api.errors.translation import explain_errors

__all__ = ["explain_errors"]
