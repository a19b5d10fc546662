"""Creates one object; a pod once more if its namespace wants users other than root.

May not: adopt an object that exists, or keep anything between two calls.
"""

from __future__ import annotations

from typing import Any

from ddpjob_operator.kube.interface import ApiError, ApiServer
from ddpjob_operator.manifests.pieces import Manifest
from ddpjob_operator.manifests.security import as_restricted
from ddpjob_operator.request import Request

STRICT = {"fieldValidation": "Strict"}


async def post(kube: ApiServer, path: str, manifest: Manifest) -> Any:
    """Return the created object; raise ApiError or UnreachableError."""
    try:
        return await kube.send(Request("POST", path, query=STRICT, body=manifest))
    except ApiError as error:
        restricted = as_restricted(manifest, error.message)
        if restricted is None:
            raise
    return await kube.send(Request("POST", path, query=STRICT, body=restricted))
