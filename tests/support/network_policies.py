"""Computes from the objects which connections NetworkPolicies allow; no network plugin is asked.

The rules of the API: a pod that no policy selects takes everything; a selected one takes
what any rule of any of its policies admits. Addresses (`ipBlock`) match no pod.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

JSON = dict[str, Any]
EVERY_PORT = "every port"


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A pod, with the labels of its namespace."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]
    host_network: bool = False  # its packets come from its node


def endpoint(pod: JSON, namespace: JSON) -> Endpoint:
    """Return the endpoint of a pod, from the objects of the API server."""
    return Endpoint(
        namespace=namespace["metadata"]["name"],
        labels=pod["metadata"].get("labels") or {},
        namespace_labels=namespace["metadata"].get("labels") or {},
        host_network=bool(pod["spec"].get("hostNetwork")),
    )


def open_ports(policies: Sequence[JSON], source: Endpoint, target: Endpoint) -> set[int | str]:
    """Return the ports of the target that the source reaches, or EVERY_PORT in a set."""
    chosen = [each for each in policies if selects_for_ingress(each, target)]
    if target.host_network or not chosen:
        return {EVERY_PORT}
    found: set[int | str] = set()
    for policy in chosen:
        for rule in policy["spec"].get("ingress") or ():
            if admits(rule, policy["metadata"]["namespace"], source):
                found |= ports_of(rule)
    return {EVERY_PORT} if EVERY_PORT in found else found


def selects_for_ingress(policy: JSON, pod: Endpoint) -> bool:
    spec = policy["spec"]
    return (
        "Ingress" in spec.get("policyTypes", ["Ingress"])
        and policy["metadata"]["namespace"] == pod.namespace
        and matches(spec["podSelector"], pod.labels)
    )


def admits(rule: JSON, namespace: str, source: Endpoint) -> bool:
    """Return whether a rule of a policy in this namespace admits the source."""
    peers: Iterable[JSON] | None = rule.get("from")
    if not peers:
        return True
    return not source.host_network and any(is_peer(peer, namespace, source) for peer in peers)


def is_peer(peer: JSON, namespace: str, source: Endpoint) -> bool:
    if "ipBlock" in peer:
        return False
    in_namespace = source.namespace == namespace
    if "namespaceSelector" in peer:
        in_namespace = matches(peer["namespaceSelector"], source.namespace_labels)
    return in_namespace and matches(peer.get("podSelector", {}), source.labels)


def ports_of(rule: JSON) -> set[int | str]:
    """Return the TCP ports of a rule, numbers or names."""
    ports = rule.get("ports")
    if not ports:
        return {EVERY_PORT}
    found: set[int | str] = set()
    for each in ports:
        if each.get("protocol", "TCP") != "TCP":
            continue
        if "port" not in each:
            return {EVERY_PORT}
        last = each.get("endPort", each["port"])
        found |= {each["port"]} if last == each["port"] else set(range(each["port"], last + 1))
    return found


def matches(selector: JSON, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches; an empty one matches everything."""
    wanted = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    return all(labels.get(name) == value for name, value in wanted.items()) and all(
        fits(each, labels) for each in expressions
    )


def fits(expression: JSON, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", ())
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise AssertionError(f"the API has no operator {expression['operator']}")
