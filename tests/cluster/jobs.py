"""Creates, changes and reads DDPJobs over HTTP, and gives the API server's words of refusal."""

from __future__ import annotations

from urllib.parse import urlencode

from cluster.control_plane import ControlPlane, Object
from ddpjob_operator.api.status import DDPJobStatus

API = "/apis/ddpjob.io/v1alpha1"
ALL_JOBS = f"{API}/ddpjobs"
STRICT = "?fieldValidation=Strict"
DRY = f"{STRICT}&dryRun=All"


class Jobs:
    """The DDPJobs of one namespace."""

    def __init__(self, server: ControlPlane, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.path = f"{API}/namespaces/{namespace}/ddpjobs"

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints of this namespace; it must succeed."""
        return self.server.kubectl(*arguments, "--namespace", self.namespace)

    def create(self, job: Object, query: str = STRICT) -> Object:
        """The job as it is stored."""
        return self.server.send("POST", self.path + query, job)

    def write_status(self, status: DDPJobStatus, name: str = "digits") -> Object:
        """The job as it is stored then."""
        return self.server.send("PATCH", f"{self.path}/{name}/status", {"status": status.to_json()})

    def get(self, part: str = "") -> Object:
        """The job called digits, or a part of it."""
        return self.server.get(f"{self.path}/digits{part}")

    def names(self, selector: str = "") -> list[str]:
        """The jobs that a field selector selects, or all."""
        listed = self.server.get(f"{self.path}?{urlencode({'fieldSelector': selector})}")
        return [each["metadata"]["name"] for each in listed["items"]]

    def complaint(self, job: Object) -> str:
        """What is said when it is to be created; empty when it may be. Nothing is stored."""
        return complaint(*self.server.answer("POST", self.path + DRY, job))

    def complaint_of_change(self, job: Object) -> str:
        """What is said when it is to replace the one of its name. Nothing is stored."""
        path = f"{self.path}/{job['metadata']['name']}"
        version = self.server.get(path)["metadata"]["resourceVersion"]
        metadata = {**job["metadata"], "resourceVersion": version}
        return complaint(*self.server.answer("PUT", path + DRY, {**job, "metadata": metadata}))


def complaint(status: int, answer: Object) -> str:
    """A line for each cause of a refusal; empty when there is none."""
    if status < 400:
        return ""
    causes = answer.get("details", {}).get("causes", ())
    lines = [f"{cause['field']}: {cause['message']}" for cause in causes]
    return "\n".join(lines or [answer["message"]])
