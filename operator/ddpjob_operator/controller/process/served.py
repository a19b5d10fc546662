"""Waits until the API server serves DDPJobs, and reports why it does not.

Without the CRD, kopf waits for ever without a word, also after the CRD was installed.
May not: create the CRD.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ddpjob_operator.api import constants
from ddpjob_operator.kube.interface import NOT_FOUND, ApiError, ApiServer, UnreachableError
from ddpjob_operator.request import Request

PAUSE_SECONDS = 2.0
API = f"/apis/{constants.API_VERSION}"
MISSING = (
    f"the cluster has no resource {constants.PLURAL}.{constants.GROUP}: its definition is missing. "
    "Install it: helm upgrade with crds.enabled=true, or kubectl apply --server-side -f "
    "crds/ddpjobs.yaml"
)

log = logging.getLogger("ddpjob.served")


class ServedJobs:
    """The answer of the API server to whether it serves DDPJobs."""

    def __init__(self, kube: ApiServer, scopes: Iterable[str]) -> None:
        """`scopes`: part of the path for each watched namespace."""
        self._kube = kube
        self._scopes = tuple(scopes)
        self.obstacle = f"{API}/{constants.PLURAL}: not listed yet"

    async def wait(self) -> None:
        """Return once they are served."""
        while obstacle := await self._find_obstacle():
            if obstacle != self.obstacle:
                log.warning("%s", obstacle)
            self.obstacle = obstacle
            await asyncio.sleep(PAUSE_SECONDS)
        self.obstacle = ""

    async def _find_obstacle(self) -> str:
        try:
            for scope in self._scopes:
                path = f"{API}{scope}/{constants.PLURAL}"
                await self._kube.send(Request("GET", path, query={"limit": "1"}))
            found = await self._kube.send(Request("GET", API))  # kopf reads it once, at its start
        except ApiError as error:
            return MISSING if error.status == NOT_FOUND else f"{API}/{constants.PLURAL}: {error}"
        except UnreachableError as error:
            return str(error)
        names = {each["name"] for each in found.get("resources", ())}
        return "" if constants.PLURAL in names else MISSING
