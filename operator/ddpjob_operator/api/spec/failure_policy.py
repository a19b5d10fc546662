"""The failure policy of a job: budgets of restarts, and rules about single failures.

May not: judge a failure; `ddpjob_protocol.failures.failure_rules` does that, for service and operator alike.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import Field, Strict

from ddpjob_operator.api.base import Model
from ddpjob_operator.api.rule import Rule
from ddpjob_operator.api.spec.fields import Count, Positive, Seconds
from ddpjob_protocol.failures import failure_rules
from ddpjob_protocol.failures.failure_rules import MAX_RULES, MAX_TIMES, FailureReason, RuleAction

MAX_CODE = 255
ExitCode = Annotated[int, Strict(), Ge(1), Le(MAX_CODE)]
WindowSeconds = Annotated[Seconds, Ge(1)]


class MaxRestarts(Model):
    """The number of restarts that a job may have before it fails, for each cause."""

    application: Count = Field(default=3, description="Maximum restarts because a process failed.")
    infrastructure: Count | None = Field(
        default=None,
        description="Maximum restarts because a worker was lost. Defaults to no limit.",
    )


class ExitCodes(Model):
    """A set of exit codes. Signal n is exit code 128 + n."""

    operator: Literal["In", "NotIn"] = Field(
        description="In: the rule matches these exit codes. NotIn: it matches all others."
    )
    values: Annotated[tuple[ExitCode, ...], MinLen(1), MaxLen(MAX_CODE)] = Field(
        description="Exit codes from 1 to 255."
    )


class FailureRule(Model):
    """The action for some failures."""

    RULES = (
        Rule(
            field="onExitCodes",
            message="and onReasons are alternatives; give exactly one of the two in each rule",
            check=lambda rule: (rule.on_exit_codes is None) != (rule.on_reasons is None),
            cel="has(self.onExitCodes) != has(self.onReasons)",
        ),
    )

    action: Literal[*map(str, RuleAction)] = Field(  # type: ignore[valid-type] # of constants
        description="Ignore: restart, and leave the budget as it is. Count: restart, and count it "
        "against maxRestarts.application. FailJob: fail the job at once."
    )
    on_exit_codes: ExitCodes | None = Field(
        default=None,
        description="Exit codes of the process that failed first, or of a pod that ended by itself.",
    )
    on_reasons: (
        Annotated[
            tuple[Literal[*map(str, FailureReason)], ...],  # type: ignore[valid-type] # as above
            MinLen(1),
            MaxLen(len(FailureReason)),
        ]
        | None
    ) = Field(
        default=None,
        description="Reasons for the end of a pod; OutOfMemory of a process, too; NoProgress for a "
        "job that hangs, with onHang: Restart.",
    )

    def to_protocol(self) -> failure_rules.FailureRule:
        """Return the rule as service and planner apply it."""
        codes = self.on_exit_codes
        return failure_rules.FailureRule(
            self.action,
            exit_codes=codes.values if codes else (),
            other_codes=codes is not None and codes.operator == "NotIn",
            reasons=self.on_reasons or (),
        )


class FailurePolicy(Model):
    """The limits of restarts after failures."""

    RULES = (
        Rule(
            field="maxRestarts.application",
            message=f"is %s, but with windowSeconds it is at most {MAX_TIMES}; lower it or remove "
            "windowSeconds",
            values=(
                (lambda policy: policy.max_restarts.application, "self.maxRestarts.application"),
            ),
            check=lambda policy: (
                policy.window_seconds is None or policy.max_restarts.application <= MAX_TIMES
            ),
            cel="!has(self.windowSeconds) || !has(self.maxRestarts) || "
            f"!has(self.maxRestarts.application) || self.maxRestarts.application <= {MAX_TIMES}",
        ),
    )

    max_restarts: MaxRestarts = Field(
        default=MaxRestarts(), description="Maximum number of restarts before the job fails."
    )
    window_seconds: WindowSeconds | None = Field(
        default=None,
        description="Seconds within which maxRestarts.application counts failures. By default, it "
        "counts those of the whole job. At least 1.",
    )
    backoff_seconds: Seconds = Field(
        default=5,
        description="Seconds before a restart after a failure. Doubles with each further failure in "
        "a row. The first failure after 30 seconds of training restarts at once.",
    )
    avoid_nodes: Annotated[Positive, Le(MAX_TIMES)] | None = Field(
        default=None,
        description="Number of failures on a node: of pods that end by their own doing, and of "
        "processes. Then new pods of the job avoid the node, by a node affinity, and workers whose "
        "processes failed there move to other nodes. By default, no node is avoided.",
    )
    on_hang: Literal["Report", "Restart"] = Field(
        default="Report",
        description="What follows if a job hangs, reason NoProgress. Report: the status names the "
        "processes. Restart: the stacks of all processes are collected, then the job restarts, and "
        "that counts as one failure.",
    )
    rules: Annotated[tuple[FailureRule, ...], MaxLen(MAX_RULES)] = Field(
        default=(),
        description="Rules about failures. The first rule that matches decides; a failure without "
        "one counts.",
    )

    @property
    def restarts_on_hang(self) -> bool:
        """True if a job that hangs restarts."""
        return self.on_hang == "Restart"
