"""What `validate` says of the manifests in wrong_manifests.py; tests/cluster asks an API server."""

from __future__ import annotations

import pytest

from ddpjob_operator.api import jobfile
from support.wrong_manifests import WRONG, Wrong


@pytest.mark.parametrize("wrong", [pytest.param(wrong, id=wrong.id) for wrong in WRONG])
def test_a_wrong_manifest_is_refused_with_a_remedy(wrong: Wrong) -> None:
    with pytest.raises(jobfile.JobFileError) as caught:
        jobfile.read(wrong.text)
    assert wrong.says in str(caught.value)


def test_there_are_sixty_and_every_acceptance_has_a_reason() -> None:
    assert len({wrong.id for wrong in WRONG}) == len(WRONG) >= 60
    assert not [wrong.id for wrong in WRONG if not wrong.server and not wrong.why]
