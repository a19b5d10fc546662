"""Volumes of SageMaker, and the limit of the volume for snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ddpjob_operator.api.spec.resources import whole_amount
from ddpjob_operator.api.spec.sagemaker import BASE, SageMaker
from ddpjob_operator.manifests.pieces import Manifest, as_mapping, texts

SNAPSHOT_FOLDER = "/snapshots"


def sagemaker_volumes(sagemaker: SageMaker) -> Iterator[tuple[str, Manifest, str]]:
    """Yield name, source and place of each volume."""
    yield "ddpjob-sagemaker", {"emptyDir": {}}, BASE
    if sagemaker.model is not None:
        yield "ddpjob-model", sagemaker.model, f"{BASE}/model"
    for channel in sagemaker.channels:
        yield f"ddpjob-channel-{channel.name}", channel.volume, f"{BASE}/input/data/{channel.name}"


def size_limit(volumes: Sequence[Any], mounts: Sequence[Any]) -> int | None:
    """Return the limit in bytes of an emptyDir for snapshots, at which kubelet evicts the pod."""
    names: set[str] = set()
    for mount in map(as_mapping, mounts):
        if any(path.rstrip("/") == SNAPSHOT_FOLDER for path in texts([mount], "mountPath")):
            names.update(texts([mount], "name"))
    found = (as_mapping(each) for each in volumes if names.intersection(texts([each], "name")))
    limits = (as_mapping(each.get("emptyDir")).get("sizeLimit") for each in found)
    return next(map(whole_amount, limits), None)
