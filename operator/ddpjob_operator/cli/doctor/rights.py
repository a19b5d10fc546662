"""The rights that users and the operator need; the chart grants the operator's."""

from __future__ import annotations

from ddpjob_operator.api.constants import GROUP, PLURAL
from ddpjob_operator.cli.doctor.observed import Right

# The rights of each command of a user.
USER: dict[str, tuple[Right, ...]] = {
    "get, describe, wait, top": tuple(Right(v, GROUP, PLURAL) for v in ("get", "list", "watch")),
    "apply": (Right("create", GROUP, PLURAL), Right("patch", GROUP, PLURAL)),
    "scale, suspend, resume": (Right("patch", GROUP, PLURAL),),
    "delete": (Right("delete", GROUP, PLURAL),),
    "logs": (Right("list", "", "pods"), Right("get", "", "pods/log")),
    "events": (Right("list", "", "events"),),
}
READ = ("get", "list", "watch")
OPERATOR: tuple[Right, ...] = (
    *(Right(verb, GROUP, PLURAL) for verb in (*READ, "delete")),
    Right("update", GROUP, f"{PLURAL}/status"),
    Right("update", GROUP, f"{PLURAL}/finalizers"),
    *(Right(verb, "", "pods") for verb in (*READ, "create", "delete")),
    *(Right(verb, "", "services") for verb in (*READ, "create")),
    *(Right(verb, "networking.k8s.io", "networkpolicies") for verb in (*READ, "create")),
    Right("create", "", "secrets"),
    Right("create", "", "events"),
    Right("get", "", "persistentvolumeclaims"),
)
