"""A body that is cut off at any point is undone wholly, counted wholly, or its state is not used."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_trainer.elastic.state.train_state import TrainState
from trainer.elastic.state import bodies
from trainer.elastic.state.bodies import Script, Training
from trainer.runs import assert_same

SCRIPTS: list[Callable[[], Script]] = [
    bodies.Plain,
    bodies.Gan,
    bodies.Clipped,
    bodies.TwoSteps,
    bodies.Sharpness,
    bodies.ByHand,
    bodies.Schedule,
]
CUT_STEP = 2


@pytest.mark.parametrize("make", SCRIPTS)
def test_a_cut_off_body_leaves_no_trace_or_counts(make: Callable[[], Script]) -> None:
    undisturbed = Training(make)
    states = []
    for _ in range(5):
        undisturbed.step()
        states.append(copy.deepcopy(undisturbed.values()))
    for point in range(bodies.points_of(make)):
        training = Training(make)
        for _ in range(CUT_STEP):
            training.step()
        training.step(cut_at=point)
        assert training.state.done in (CUT_STEP, CUT_STEP + 1)
        assert_same(states[training.state.done - 1], training.values(), f"cut at {point}")
        while training.state.steps_done < 5:
            training.step()
        assert_same(states[-1], training.values(), f"repeated after {point}")


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_step_that_breaks_within_its_closure_leaves_no_trace(call: int) -> None:
    training = Training(bodies.Closures)
    assert isinstance(training.script, bodies.Closures)
    for step in range(2):
        before = copy.deepcopy(training.values())
        training.script.breaks_at = call
        training.step()
        assert training.state.done == step
        assert_same(before, training.values())
        training.script.breaks_at = -1
        training.step()
        assert training.state.done == step + 1


def test_several_optimizers_are_undone_in_the_first_body() -> None:
    for point in range(bodies.points_of(bodies.Gan)):
        training = Training(bodies.Gan)
        before = copy.deepcopy(training.values())
        training.step(cut_at=point)
        assert training.state.done == 0
        assert_same(before, training.values())


@pytest.mark.parametrize(
    ("make", "point"), [(bodies.Clipped, 2), (bodies.Sharpness, 1), (bodies.TwoSteps, 3)]
)
def test_a_state_amid_an_unknown_body_is_not_used(make: Callable[[], Script], point: int) -> None:
    training = Training(make)
    training.step(cut_at=point)
    assert training.state.progress is None
    with pytest.raises(RuntimeError, match="cut off after a part of its changes"):
        training.state.check_untrained()


def test_who_joins_learns_what_the_body_changes(caplog: pytest.LogCaptureFixture) -> None:
    training, joiner = Training(bodies.Clipped), Training(bodies.Clipped)
    with caplog.at_level(logging.WARNING, "ddpjob"):
        training.step()
        training.step()
    assert len([each for each in caplog.messages if "changes the weights" in each]) == 1
    joiner.state.restore(copy.deepcopy(training.state.collect()))
    joiner.state.done = 2
    before = copy.deepcopy(joiner.values())
    joiner.step(cut_at=2)  # after the step, before the clip
    assert joiner.state.done == 2
    assert_same(before, joiner.values())


def change_in_place(parameter: torch.nn.Parameter) -> None:
    with torch.no_grad():
        parameter.mul_(2)


def change_memory(parameter: torch.nn.Parameter) -> None:
    parameter.data = parameter.data * 2


@pytest.mark.parametrize("change", [change_in_place, change_memory])
def test_a_change_after_many_plain_steps_is_seen(
    change: Callable[[torch.nn.Parameter], None],
) -> None:
    training = Training(bodies.Plain)
    for _ in range(3):
        training.step()
    training.state.begin()
    training.script.optimizers[0].step()
    change(next(training.script.model.parameters()))
    assert not training.state.is_applied
    training.state.rollback()
    assert training.state.progress is None


def test_all_optimizers_reach_who_joins() -> None:
    training, joiner = Training(bodies.Gan), Training(bodies.Gan)
    for _ in range(3):
        training.step()
    joiner.state.restore(copy.deepcopy(training.state.collect()))
    joiner.state.done, joiner.own.value = 3, 3
    assert_same(training.values(), joiner.values())
    for each in (training, joiner):
        each.step()
    assert_same(training.values(), joiner.values())


def test_the_next_process_gets_a_body_with_several_optimizers_undone(tmp_path: Path) -> None:
    """A dump by another thread."""
    training = Training(bodies.Gan)
    training.state.membership = MembershipId(1, 1, 2)
    training.step()
    before = copy.deepcopy(training.values())
    training.state.begin()
    body = training.script.body(1)
    next(body)
    next(body)
    assert training.state.dump(tmp_path / "left") == 1
    assert_same(before, training.values())


def make_state(script: Script, optimizers: object) -> TrainState:
    return TrainState(script.model, optimizers, None, None, None, None)  # type: ignore[arg-type]


def test_optimizers_that_would_diverge_are_refused() -> None:
    script = bodies.Gan()
    generator, critic = script.optimizers
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(
        ValueError, match=r"optimizer 1 \(SGD\) has parameters that the model does not"
    ):
        make_state(script, [generator, other])
    with pytest.raises(ValueError, match="one of them twice"):
        make_state(script, [critic, critic])
    for wrong in (None, [], [generator, object()]):
        with pytest.raises(TypeError, match=r"needs a torch.optim.Optimizer, or a list"):
            make_state(script, wrong)


def test_an_optimizer_that_the_loop_does_not_have_is_refused_at_its_first_step() -> None:
    script = bodies.Gan()
    state = make_state(script, script.optimizers[0])
    state.done = 0
    state.begin()
    script.loss(0).backward()
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    other.step()  # of another model
    script.optimizers[0].step()
    with pytest.raises(RuntimeError, match=r"a second optimizer \(SGD\) trains the model"):
        script.optimizers[1].step()
    state.end()
    script.optimizers[1].step()  # after the loop
