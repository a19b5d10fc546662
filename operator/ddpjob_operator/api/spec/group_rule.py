"""A rule about an extra group that reads fields of the spec.

May not: know a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddpjob_operator.api import cel
from ddpjob_operator.api.problem import Problem
from ddpjob_operator.api.rule import Rule

GROUPS = cel.groups("self")


class GroupRule(Rule):
    """A rule about an extra group that reads fields of the spec: `self` and `g` in CEL.

    The API server cannot point to one group, so its message names the group.
    """

    def find_problems(self, subject: Any) -> Iterator[Problem]:
        """Yield a problem for each group of the spec that breaks the rule."""
        for i, group in enumerate(subject.extra_worker_groups):
            if self.check is not None and not self.check(subject, group):
                yield Problem((cel.GROUPS, i, *self.path), self.text(subject, group))

    def to_json(self) -> dict[str, str]:
        """Return the rule in the form of the API server."""
        broken = f"{GROUPS}.filter(g, !({self.cel}))"
        shown = ("g.name", *(value for _, value in self.values))
        values = [f"{broken}.map(g, {value})[0]" for value in shown]
        subject = f"{self.field} of group '%s' " if self.field else "group '%s' "
        holds = f"{GROUPS}.all(g, {self.cel})"
        return self.build(holds, subject + self.message, *values, field=cel.GROUPS)
