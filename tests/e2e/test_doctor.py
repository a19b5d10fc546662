"""`ddpjob doctor` on real nodes: its pods run, connect, and are gone."""

from __future__ import annotations

import json

from e2e.conftest import Images
from e2e.kubectl import Kubectl


def test_the_cluster_can_run_jobs(kubectl: Kubectl, images: Images) -> None:
    done = kubectl.ddpjob("doctor", "--reach", "--image", images.agent, "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {each["check"]: (each["state"], each["message"]) for each in json.loads(done.stdout)}
    for check in ("crd", "operator", "operator rights", "your rights", "image", "reach"):
        assert found[check][0] == "ok", found
    assert found["image"][1].startswith(f"{images.agent} was pulled on ")
    assert "reach each other over TCP" in found["reach"][1]
    absent = kubectl.ddpjob("doctor", "--image", "ddpjob/no-such-image:none", "-o", "json")
    assert absent.returncode == 1, absent.stdout + absent.stderr
    [image] = [each for each in json.loads(absent.stdout) if each["check"] == "image"]
    assert image["message"].startswith("ddpjob/no-such-image:none cannot be pulled: ")
    assert kubectl.pods() == {}
