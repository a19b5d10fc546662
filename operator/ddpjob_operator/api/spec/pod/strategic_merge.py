"""Merges a pod template over another one, as `kubectl patch --type=strategic` does.

Mappings merge by field. The lists of MERGE_KEYS merge by the key of their entries; any other list is
replaced. `$patch: replace` replaces a mapping or list, `$patch: delete` deletes an entry or empties
a mapping, and null deletes a field.

Three differences. New entries follow the old ones, because a variable may refer to earlier ones only.
`$patch: replace` also holds for a field that the original lacks; an API server drops that field. A null
stays in the result until `without_nulls` removes it, so that a default can respect it.
May not: validate a template. Values of any type pass; the API server rejects wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# The list fields of a pod that merge, with the field that identifies an entry: `patchMergeKey` in
# the API of Kubernetes 1.34. tests/cluster/test_strategic_merge.py compares them with an API server.
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
DIRECTIVE = "$patch"
REPLACE, DELETE = "replace", "delete"


def merge(original: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return the original with the patch merged over it; the result shares unchanged parts."""
    if DIRECTIVE in patch:
        return dict(_plain(patch))
    merged = dict(original)
    for field, value in patch.items():
        merged[field] = _merge_field(field, original.get(field), value)
    return merged


def without_nulls(value: Any) -> Any:
    """Return a copy of the value without the fields that are null."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def unknown_directives(value: object) -> Iterator[str]:
    """Yield the directives of a patch that `merge` does not know."""
    for field, each in value.items() if isinstance(value, dict) else ():
        if str(field).startswith("$") and (field != DIRECTIVE or each not in (REPLACE, DELETE)):
            yield str(field) if field != DIRECTIVE else f"{field}: {each}"
        yield from unknown_directives(each)
    for each in value if isinstance(value, list) else ():
        yield from unknown_directives(each)


def _merge_field(field: str, original: object, patch: object) -> object:
    if isinstance(original, dict) and isinstance(patch, dict):
        return merge(original, patch)
    if field in MERGE_KEYS and isinstance(original, list) and isinstance(patch, list):
        return _merge_lists(original, patch, MERGE_KEYS[field])
    return None if _get(patch, DIRECTIVE) == DELETE else _plain(patch)


def _merge_lists(original: list[Any], patch: list[Any], key: str) -> list[Any]:
    directives = [(_get(entry, DIRECTIVE), _get(entry, key)) for entry in patch]
    if any(directive == REPLACE for directive, _ in directives):
        original = []
    deleted = [name for directive, name in directives if directive == DELETE]
    merged = [entry for entry in original if _get(entry, key) not in deleted or not deleted]
    names = [_get(entry, key) for entry in merged]
    for entry in patch:
        name = _get(entry, key)
        if _get(entry, DIRECTIVE) is not None:
            continue
        if name is not None and name in names:
            at = names.index(name)
            merged[at] = merge(merged[at], entry)
        else:
            merged.append(_plain(entry))
    return merged


def _plain(patch: Any) -> Any:
    """Return the value of a patch that has no counterpart in the original."""
    if isinstance(patch, dict):
        if patch.get(DIRECTIVE) == DELETE:
            return {}
        kept = ((k, v) for k, v in patch.items() if k != DIRECTIVE and _get(v, DIRECTIVE) != DELETE)
        return {field: _plain(value) for field, value in kept}
    if isinstance(patch, list):
        return [_plain(entry) for entry in patch if _get(entry, DIRECTIVE) is None]
    return patch


def _get(entry: object, field: str) -> Any:
    return entry.get(field) if isinstance(entry, dict) else None
