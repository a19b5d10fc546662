"""The calls by which a script controls its loop, and their effects between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_trainer.elastic.control.evaluation import Evaluation

if TYPE_CHECKING:
    from ddpjob_trainer.agent_link.connection import AgentConnection
    from ddpjob_trainer.elastic.control.between_steps import BetweenSteps
    from ddpjob_trainer.elastic.control.signals import Signals
    from ddpjob_trainer.elastic.ddp_model import ElasticModel
    from ddpjob_trainer.elastic.group.group_breaks import GroupBreaks
    from ddpjob_trainer.elastic.state.train_state import TrainState


class ScriptControl:
    """The part of a Loop that its script controls."""

    model: ElasticModel
    _agent: AgentConnection | None
    _between: BetweenSteps
    _breaks: GroupBreaks
    _signals: Signals
    _training: TrainState

    def stop(self) -> None:
        """End the loop after the next step, the same one on all ranks; call this on any rank.

        The loop saves the state, as at its regular end. If steps take less than 20 ms, it may end
        a few steps later.
        """
        self._signals.stop(self._training.done or 0)

    def metric(self, value: float) -> None:
        """Give ReduceLROnPlateau a value, on one rank or on several: their mean counts.

        `value` is a number or a tensor with one element. The scheduler steps at the end of the next step but one, on all ranks. Raise RuntimeError
        without such a scheduler.
        """
        self._training.schedule.check_metric()
        self._signals.give_metric(float(value))

    def evaluate(self) -> Evaluation:
        """Return the context of an evaluation between two steps, on all ranks or on some.

        In it the model is in eval mode, without gradients, and `loop.model` needs no other rank. If
        a change of the workers breaks a collective, the rest of the block is skipped.
        """
        return Evaluation(self.model, self._breaks, self._training, self._between)

    def set_between_steps(self, value: bool) -> None:
        """Record whether the main thread runs the script between two steps.

        Raise RuntimeError if the script ran a collective there.
        """
        if self._agent is not None:
            self._agent.is_between_steps = value
        if value:
            self._between.begin()
        else:
            self._between.end()

    def _exchange_signals(self, done: int) -> bool:
        """Exchange the signals before a step; return False if the group broke."""
        try:
            self._signals.exchange(done)
        except Exception as error:  # noqa: BLE001 - raised again if it is not a break
            self._breaks.handle(error)
            return False
        self._training.metric = self._signals.metric
        return True

    def _restart_control(self, done: int) -> None:
        """Begin in a new group, whose ranks have done `done` steps."""
        self._signals.restart(done)
        self._training.schedule.restart()
