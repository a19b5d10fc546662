"""Objects as an API server keeps them: revisions, conflicts, graceful deletion, and a history.

Only the behaviour that the operator can observe; tests/operator/kube/test_api_server.py compares.
"""

from __future__ import annotations

import dataclasses
import json
import marshal
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ddpjob_operator.kube.interface import ApiError

JSON = dict[str, Any]
FIRST_REVISION = 1000
NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
MANAGED = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "namespace")
FOREGROUND = "foregroundDeletion"


@dataclasses.dataclass(frozen=True)
class Resource:
    """One kind of object."""

    api_version: str
    kind: str
    plural: str
    counts_generations: bool = False
    status: bool = False  # a subresource, which other writes leave alone
    custom: bool = False

    @property
    def prefix(self) -> str:
        return ("/apis/" if "/" in self.api_version else "/api/") + self.api_version

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


JOBS = Resource("ddpjob.io/v1alpha1", "DDPJob", "ddpjobs", True, True, True)
PODS = Resource("v1", "Pod", "pods", True, True)
SERVICES = Resource("v1", "Service", "services")
SECRETS = Resource("v1", "Secret", "secrets")
EVENTS = Resource("v1", "Event", "events")
CLAIMS = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims", status=True)
LEASES = Resource("coordination.k8s.io/v1", "Lease", "leases")
POLICIES = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", True)
CHILDREN = (PODS, SERVICES, POLICIES)
RESOURCES = {(r.prefix, r.plural): r for r in (JOBS, SECRETS, EVENTS, CLAIMS, LEASES, *CHILDREN)}

WITHOUT_REFERENCES = 2  # the version of marshal in which no two parts of a copy are one object
Key = tuple[Resource, str, str]  # namespace and name


@dataclasses.dataclass(frozen=True)
class Change:
    """One revision; `after` is what there is now, or was last."""

    revision: int
    resource: Resource
    before: JSON | None
    after: JSON
    deleted: bool = False


def copy_of(obj: Any) -> Any:
    """Return a copy of a value of JSON."""
    return marshal.loads(marshal.dumps(obj, WITHOUT_REFERENCES))  # much faster than through JSON


def received(body: Any) -> Any:
    """Return what arrives of a body; reject values that JSON cannot hold."""
    return json.loads(json.dumps(body))


class Objects:
    """All objects of one cluster."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.revision = FIRST_REVISION
        self._history: list[Change] = []
        self._now = now
        self._items: dict[Key, JSON] = {}

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: Key) -> JSON:
        if key not in self._items:
            resource, _, name = key
            raise ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found')
        return self._items[key]

    def all(self, resource: Resource, namespace: str | None, selector: str) -> Iterator[JSON]:
        for key, obj in sorted(self._items.items(), key=lambda item: item[0][1:]):
            if key[0] == resource and namespace in (None, key[1]) and matches(selector, obj):
                yield obj

    def changes(self, since: int) -> list[Change]:
        """Return the changes after that revision."""
        return self._history[since - FIRST_REVISION :]

    # --- writing ----------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: JSON, *, dry_run: bool) -> JSON:
        obj = received(body)
        metadata = obj.setdefault("metadata", {})
        self._check(resource, namespace, obj)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if not NAME.fullmatch(metadata.get("name", "")):
            raise invalid(resource, metadata.get("name", ""), "metadata.name: Invalid value")
        key = resource, namespace, metadata["name"]
        if key in self._items:
            message = f'{resource.qualified} "{metadata["name"]}" already exists'
            raise ApiError(409, "AlreadyExists", message)
        metadata |= {
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": self._at(),
        }
        for field in ("deletionTimestamp", "resourceVersion", "generation"):
            metadata.pop(field, None)
        if resource.counts_generations:
            metadata["generation"] = 1
        if resource.status:
            obj.pop("status", None)
        if resource is PODS:
            obj["status"] = {"phase": "Pending"}
        return obj if dry_run else self._write(key, obj)

    def replace(self, key: Key, body: JSON, *, status: bool = False) -> JSON:
        old, obj = self.get(key), received(body)
        resource, namespace, name = key
        self._check(resource, namespace, obj)
        given = obj["metadata"]
        if given.get("name") != name:
            raise ApiError(400, "BadRequest", "the name of the object does not match the URL")
        if resource.custom and not given.get("resourceVersion"):
            raise invalid(
                resource, name, "metadata.resourceVersion: must be specified for an update"
            )
        self._expect(key, given.get("uid"), given.get("resourceVersion"))
        if status:
            obj = {**old, "status": obj.get("status", {})}
        else:
            kept = {field: old["metadata"][field] for field in MANAGED if field in old["metadata"]}
            obj["metadata"] = {
                **given,
                **kept,
                "resourceVersion": old["metadata"]["resourceVersion"],
            }
            if resource.status:
                obj = (
                    {**obj, "status": old["status"]} if "status" in old else without(obj, "status")
                )
            if resource.counts_generations and without(obj, "metadata", "status") != without(
                old, "metadata", "status"
            ):
                obj["metadata"]["generation"] += 1
        if obj == old:
            return old
        if obj["metadata"].get("deletionTimestamp") and not obj["metadata"].get("finalizers"):
            return self._erase(key)
        return self._write(key, obj)

    def delete(self, key: Key, options: JSON) -> JSON:
        """Delete an object; return it as it is or last was, or a status if that kind returns no more."""
        resource, old = key[0], self.get(key)
        wanted = options.get("preconditions") or {}
        self._expect(key, wanted.get("uid"), wanted.get("resourceVersion"))
        metadata = copy_of(old["metadata"])
        if options.get("propagationPolicy") == "Foreground":
            metadata["finalizers"] = [*metadata.get("finalizers", ()), FOREGROUND]
        pod, stays = resource is PODS, bool(metadata.get("finalizers"))
        grace = self._grace(old, options) if pod else 0
        earlier = metadata.get("deletionGracePeriodSeconds")
        if earlier is not None and earlier <= grace:
            return old
        if pod or stays:
            metadata |= {"deletionTimestamp": self._at(grace), "deletionGracePeriodSeconds": grace}
            metadata["generation"] += 1
            old = self._write(key, {**old, "metadata": metadata})
        return old if grace or stays else self._erase(key)

    def collect_garbage(self) -> None:
        """Delete what has no owner left, as the garbage collector would sooner or later."""
        uids = {obj["metadata"]["uid"]: obj["metadata"] for obj in self._items.values()}
        for key, obj in list(self._items.items()):
            owners = [uids.get(ref["uid"]) for ref in obj["metadata"].get("ownerReferences", ())]
            if owners and all(o is None or FOREGROUND in o.get("finalizers", ()) for o in owners):
                self.delete(key, {})
        owned = {
            ref["uid"]
            for obj in self._items.values()
            for ref in obj["metadata"].get("ownerReferences", ())
        }
        for key, obj in list(self._items.items()):
            left = [f for f in obj["metadata"].get("finalizers", ()) if f != FOREGROUND]
            if obj["metadata"]["uid"] not in owned and FOREGROUND in obj["metadata"].get(
                "finalizers", ()
            ):
                self.replace(key, {**obj, "metadata": {**obj["metadata"], "finalizers": left}})

    def change(self, key: Key, **parts: JSON) -> JSON:
        """Merge into spec or status, as kubelet and scheduler do through subresources."""
        old = self.get(key)
        return self._write(
            key, {**old, **{part: {**old.get(part, {}), **parts[part]} for part in parts}}
        )

    # --- the ways of the API server ---------------------------------------------------------------

    def _check(self, resource: Resource, namespace: str, obj: JSON) -> None:
        if (obj.get("apiVersion"), obj.get("kind")) != (resource.api_version, resource.kind):
            raise ApiError(
                400, "BadRequest", f"the object is no {resource.kind} of {resource.api_version}"
            )
        if obj["metadata"].get("namespace", namespace) != namespace:
            message = (
                "the namespace of the provided object does not match the namespace of the request"
            )
            raise ApiError(400, "BadRequest", message)

    def _expect(self, key: Key, uid: str | None, version: str | None) -> None:
        metadata = self._items[key]["metadata"]
        for given, actual in ((uid, metadata["uid"]), (version, metadata["resourceVersion"])):
            if given and given != actual:
                message = f'Operation cannot be fulfilled on {key[0].qualified} "{key[2]}": the object has been modified; please apply your changes to the latest version and try again'
                raise ApiError(409, "Conflict", message)

    def _grace(self, pod: JSON, options: JSON) -> int:
        if not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Succeeded", "Failed"):
            return 0
        asked = options.get("gracePeriodSeconds")
        return int(pod["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)

    def _write(self, key: Key, obj: JSON) -> JSON:
        before = self._items.get(key)
        self._items[key] = self._stamp(obj)
        self._history.append(Change(self.revision, key[0], before, self._items[key]))
        return self._items[key]

    def _erase(self, key: Key) -> JSON:
        before = self._items.pop(key)
        after = self._stamp(before)
        self._history.append(Change(self.revision, key[0], before, after, deleted=True))
        if key[0].custom:
            details = {
                "name": key[2],
                "group": key[0].group,
                "kind": key[0].plural,
                "uid": before["metadata"]["uid"],
            }
            return {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }
        return after

    def _stamp(self, obj: JSON) -> JSON:
        self.revision += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.revision)}}

    def _at(self, seconds: float = 0) -> str:
        return (self._now() + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def matches(selector: str, obj: JSON) -> bool:
    """Return whether a label selector selects an object; supports equality and existence."""
    labels = obj["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        parsed = re.fullmatch(r"\s*(!?)\s*([-\w./]+)\s*(?:(==?|!=)\s*([-\w.]*)\s*)?", term)
        if parsed is None:
            raise ApiError(400, "BadRequest", f"unable to parse requirement: {term}")
        negated, label, operator, value = parsed.groups()
        fits = label in labels if operator is None else labels.get(label) == value
        if fits == bool(negated or operator == "!="):
            return False
    return True


def merged(target: Any, patch: Any) -> Any:
    """A JSON merge patch, applied."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def invalid(resource: Resource, name: str, what: str) -> ApiError:
    return ApiError(422, "Invalid", f'{resource.kind} "{name}" is invalid: {what}')


def without(obj: JSON, *fields: str) -> JSON:
    return {field: value for field, value in obj.items() if field not in fields}
