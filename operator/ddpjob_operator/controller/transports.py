"""The two ways from the operator to a job's rendezvous service.

May not: know what is sent.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.rendezvous.client import (
    ServiceUnavailableError,
    Transport,
    connect_directly,
)
from ddpjob_operator.rendezvous.session_pool import Key, ServiceId
from ddpjob_operator.request import Request


def proxy_transport(kube: ApiServer, key: Key, _service: ServiceId) -> Transport:
    """Return a transport through the API server, for an operator outside the cluster."""
    service = f"{constants.service_name(key.name)}:{constants.SERVICE_PORT}"
    base = f"/api/v1/namespaces/{key.namespace}/services/{service}/proxy"

    async def send(request: Request) -> Any:
        try:
            return await kube.send(dataclasses.replace(request, path=base + request.path))
        except (ApiError, UnreachableError) as error:
            raise ServiceUnavailableError(str(error)) from error

    return send


def direct_transport(_key: Key, service: ServiceId) -> Transport:
    """Return a direct transport to a job's service, for an operator in the cluster.

    It connects to the pod that the operator observed. Any pod with the right labels could answer
    behind the name of the Service.
    """
    return connect_directly(service.address, constants.SERVICE_PORT)
