"""The service may hold a connection for each worker of a large job."""

from __future__ import annotations

import resource

from ddpjob_agent.net.descriptors import raise_descriptor_limit


def test_the_soft_limit_becomes_the_hard_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > 256
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        raised = raise_descriptor_limit()
        assert 256 < raised <= hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, hard)
        assert raise_descriptor_limit() == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
