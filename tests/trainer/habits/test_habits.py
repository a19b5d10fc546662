"""Scripts as users write them: trained the same over changes, or refused at their first step.

Each runs undisturbed on one process, and on one to three with changes of the membership in the
middle of its steps. Its loss and its parameters after each step are those of the undisturbed run,
and replicas are equal to the bit; or the script is refused, with words that name the remedy. A
script that is refused at a change only also runs undisturbed on three. DDPJOB_HABITS=all runs each
script undisturbed on two and on three processes, too, and with a hundred changes. Some scripts, whose
mechanism another one uses, too, run with it only.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from support.forked import Forks, environment
from trainer.habits.memberships import draw, run_live, run_live_with_a_joiner_at, run_snapshot
from trainer.habits.processes import Zygote
from trainer.habits.runs import Run, verdict

ALL = os.environ.get("DDPJOB_HABITS") == "all"
SEEDS = range(10) if ALL else range(1)
WORLDS = (2, 3) if ALL else ()
ENDS_BELOW = 0.25  # the loss at which two scripts end early
CHANGES = {"live": 10, "snapshot": 10} if ALL else {"live": 6, "snapshot": 3}


class Script(NamedTuple):
    """A script, and what becomes of it."""

    name: str
    refused: str = ""  # words of the refusal; none: it trains the same
    alone: bool = True  # refused on one process, too
    undisturbed: bool = True  # refused without a change, too
    steps: int = 1  # done at most before the refusal
    ends_early: bool = False  # may do a few steps more or less
    replicas_only: bool = False
    in_soak: bool = False  # run with DDPJOB_HABITS=all only


SAMPLER = "ElasticBatchSampler(dataset"
OPTIMIZERS = "Give the Loop all optimizers"
ON_GPU = "DDPJOB_TEST_DEVICE" in os.environ
LIVE = [
    Script("optimizers.plain"),
    Script("optimizers.gan", OPTIMIZERS),
    Script("optimizers.several_optimizers"),
    Script("optimizers.actor_critic", OPTIMIZERS),
    Script("optimizers.two_heads_two_optimizers"),
    Script("optimizers.accumulation_over_iterations", "larger batch", steps=3),
    Script("optimizers.accumulation_within_a_step"),
    Script("optimizers.scaler_and_clipping"),
    Script("optimizers.scheduler_every_epoch"),
    Script("optimizers.scheduler_by_hand", "train different models", undisturbed=False, steps=39),
    Script("optimizers.numpy_learning_rate"),
    Script("optimizers.sharpness_aware"),
    Script("optimizers.lbfgs", "train different models: prev_loss", alone=False),
    Script("optimizers.lbfgs_with_the_loss_of_all"),
    Script("optimizers.weight_clipping"),
    Script("models.forward_by_the_model_itself", "Call `loop.model(...)`"),
    Script("models.own_average"),
    Script("models.averaged_model"),
    Script("models.average_outside_of_the_step"),
    Script(
        "models.sync_batch_norm",
        "" if ON_GPU else "SyncBatchNorm layers only work with GPU modules",
    ),
    Script("models.accelerate_prepares_all"),
    Script("models.fabric_sets_up_all"),
    Script("models.communication_hook"),
    Script("models.shared_parameters"),
    Script("models.layers_unfrozen_in_mid_run"),
    Script("models.layers_frozen_and_unfrozen_once"),
    Script("models.several_buckets"),
    Script("models.dropout"),
    Script("recipes.clipping_by_value"),
    Script("recipes.one_cycle"),
    Script("recipes.own_optimizer"),
    Script("recipes.normed_weights"),
    Script("recipes.recomputed_layers"),
    Script(
        "recipes.group_added_later",
        "its optimizer had 4 parameters, the script's has 2",
        undisturbed=False,
        steps=39,
    ),
    Script("recipes.mixed_samples", replicas_only=True),
    Script("recipes.spectral_norms"),
    Script("recipes.fused_adam"),
    Script("recipes.foreach_amsgrad"),
    Script("recipes.lazy_layers", "Call the model once with a sample"),
    Script("recipes.no_sync_by_hand", "exchange"),
    Script("recipes.plateau_by_hand", "train different models", alone=False, steps=39),
    Script("recipes.evaluation_in_the_body"),
    Script("recipes.layer_that_evaluates_from_step_12_on"),
    Script("data.mean_over_counted_tokens"),
    Script("data.loss_without_its_weight", "call `step.backward(loss)`"),
    Script("data.weighted_sampler", SAMPLER),
    Script("data.order_by_weight"),
    Script("data.order_by_length"),
    Script("data.distributed_sampler", SAMPLER),
    Script("data.data_by_step_number"),
    Script("data.early_stopping", ends_early=True),
    Script("data.early_stopping_by_stop", ends_early=True),
    Script("data.evaluation_on_one_rank"),
    Script("data.evaluation_on_all_ranks"),
    Script("data.evaluation_by_evaluate"),
    Script("data.own_collate_in_workers"),
    Script("gradients.gathered_features_of_unequal_shares"),
    Script("gradients.clipped_by_hooks", replicas_only=True, in_soak=True),
    Script("gradients.optimizers_in_the_backward", "within the backward pass"),
    Script("gradients.functional_forward", "Call `loop.model(...)`"),
    Script("gradients.functional_gradients", "train different models", alone=False, steps=39),
    Script("gradients.functional_gradients_exchanged_by_hand", in_soak=True),
    Script("gradients.two_backwards_of_one_forward", "add the losses"),
    Script("gradients.graph_retained_for_a_second_backward", "call `step.backward(loss)`"),
    Script("gradients.one_of_two_losses_without_its_weight", "call `step.backward(loss)`"),
    Script("gradients.two_forwards_and_two_backwards", in_soak=True),
    Script("gradients.two_forwards_before_two_backwards", "add the losses"),
    Script("gradients.two_forwards_and_one_backward", in_soak=True),
    Script("gradients.penalty_of_gradients", in_soak=True),
    Script("gradients.branches_that_change", in_soak=True),
    Script("gradients.gradients_set_to_zero", in_soak=True),
    Script("gradients.joined_uneven_inputs", "leave join() out"),
    Script("states.tensor_learning_rate", in_soak=True),
    Script("states.capturable_adam", "" if ON_GPU else "capturable=True"),
    Script("states.learning_rate_by_hand", in_soak=True),
    Script("states.learning_rate_finder", in_soak=True),
    Script("states.metrics_of_all_ranks", in_soak=True),
    Script("states.metrics_between_steps", "ran between two steps"),
    Script("states.pictures_of_rank_0", in_soak=True),
    Script("states.weights_replaced_in_the_body"),
    Script("states.weights_replaced_between_steps", in_soak=True),
    Script("states.average_swapped_in_between_steps", in_soak=True),
    Script("states.average_swapped_in_for_an_evaluation"),
    Script("states.average_swapped_in_in_the_body"),
    Script("states.best_weights_loaded_again"),
    Script("states.iterable_dataset", "Stream"),
    Script("states.stream"),
    Script("states.persistent_workers", in_soak=True),
]
SNAPSHOT = [
    Script("scripts.plain"),
    Script("scripts.gan"),
    Script("scripts.actor_critic"),
    Script("scripts.accumulation_within_a_step"),
    Script("scripts.scaler_and_clipping"),
    Script("scripts.scheduler_per_epoch"),
    Script("scripts.scheduler_on_plateau"),
    Script("scripts.numpy_learning_rate"),
    Script("scripts.weight_clipping"),
    Script("scripts.own_average"),
    Script("scripts.averaged_model"),
    Script("scripts.communication_hook"),
    Script("scripts.shared_parameters"),
    Script("recipes.clipping_by_value"),
    Script("recipes.one_cycle"),
    Script("recipes.own_optimizer"),
    Script("recipes.normed_weights"),
    Script("recipes.frozen_backbone"),
    Script("recipes.mixed_samples", replicas_only=True),
    Script("recipes.spectral_norms"),
    Script("recipes.fused_adam"),
    Script("recipes.recomputed_layers"),
    Script("recipes.plateau_on_a_local_metric", "train different models", alone=False, steps=39),
    Script("recipes.no_sync_by_hand", "train different models", alone=False, steps=39),
    Script(
        "recipes.layers_unfrozen_after_the_wrapping",
        "train different models",
        alone=False,
        steps=39,
    ),
    Script(
        "recipes.group_added_later",
        "its optimizer had 4 parameters, the script's has 2",
        undisturbed=False,
        steps=39,
    ),
    Script("patterns.tensor_learning_rate"),
    Script("patterns.learning_rate_by_hand", in_soak=True),
    Script("patterns.gradients_set_to_zero", in_soak=True),
    Script("patterns.two_forwards_and_one_backward", in_soak=True),
    Script("patterns.functional_forward", "train different models", alone=False, steps=39),
    Script("patterns.functional_gradients_exchanged_by_hand", in_soak=True),
    Script("patterns.metrics_of_all_ranks", in_soak=True),
    Script("patterns.weights_replaced"),
    Script("patterns.average_swapped_in_after_a_save"),
    Script("patterns.best_weights_loaded_again", in_soak=True),
    Script("patterns.persistent_workers", in_soak=True),
    Script("recipes.optimizer_in_shards", "ZeroRedundancyOptimizer"),
    Script("recipes.forgotten_wrapper", "train different models", alone=False, steps=39),
]


class Runner:
    """Runs scripts, all in one event loop."""

    def __init__(self, forks: Forks, environment: dict[str, str]) -> None:
        self._loop = asyncio.Runner()
        self._zygote = Zygote()
        self._folder = tempfile.TemporaryDirectory(prefix="ddpjob-habits-", dir="/dev/shm")
        started = self._zygote.start(forks, Path(self._folder.name), environment)
        self._loop.run(started)

    def close(self) -> None:
        self._loop.run(self._zygote.stop())
        self._loop.close()
        self._folder.cleanup()

    def run(self, mode: str, script: Script) -> dict[str, Run]:
        """Run a script in each way."""
        worlds = WORLDS if script.undisturbed else WORLDS or (3,)
        return self._loop.run(self._run_all(mode, script.name, worlds))

    def run_alone(self, name: str) -> Run:
        """Run a script of live mode undisturbed on one process."""
        return self._loop.run(self._run("live", name, 1))

    def run_with_a_joiner_at(self, name: str, step: int) -> Run:
        """Run a script that ends at this step, at which another process is to join."""
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            script = f"trainer.habits.live.{name}"
            return self._loop.run(
                run_live_with_a_joiner_at(self._zygote, script, Path(folder), step)
            )

    async def _run_all(self, mode: str, name: str, worlds: Sequence[int]) -> dict[str, Run]:
        ways = {"alone": self._run(mode, name, 1)}
        ways |= {f"{world} processes": self._run(mode, name, world) for world in worlds}
        ways |= {f"changes of seed {seed}": self._run(mode, name, 2, seed) for seed in SEEDS}
        async with asyncio.TaskGroup() as group:  # the failure of one run ends the others
            tasks = {way: group.create_task(run) for way, run in ways.items()}
        return {way: task.result() for way, task in tasks.items()}

    async def _run(self, mode: str, name: str, world: int, seed: int | None = None) -> Run:
        run = run_live if mode == "live" else run_snapshot
        changes = [] if seed is None else draw(seed, CHANGES[mode], world)
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            return await run(
                self._zygote, f"trainer.habits.{mode}.{name}", Path(folder), world, changes
            )


@pytest.fixture(scope="module")
def runner(forks: Forks) -> Iterator[Runner]:
    runner = Runner(forks, environment())
    try:
        yield runner
    finally:
        runner.close()


def check(script: Script, runner: Runner, mode: str) -> None:
    runs = runner.run(mode, script)
    found = {
        way: verdict(
            run, None if script.replicas_only else runs["alone"], ends_early=script.ends_early
        )
        for way, run in runs.items()
    }
    told = "\n".join(f"{way}: {each}" for way, each in found.items())
    for way, run in runs.items():
        is_spared = (way == "alone" and not script.alone) or (
            not way.startswith("changes") and not script.undisturbed
        )
        if script.refused and not is_spared:
            assert script.refused in run.error, told
            assert run.steps <= script.steps, told
        else:
            assert found[way] == "same", told


# Scripts that name the CPU, or whose loading processes would take tensors of a GPU.
OF_THE_CPU = {
    "models.accelerate_prepares_all",
    "models.fabric_sets_up_all",
    "data.own_collate_in_workers",
}
RUN_HERE = [
    script
    for script in LIVE
    if (ALL or not script.in_soak) and not (ON_GPU and script.name in OF_THE_CPU)
]


@pytest.mark.parametrize("script", RUN_HERE, ids=lambda script: script.name)
def test_in_live_mode(script: Script, runner: Runner) -> None:
    check(script, runner, "live")


@pytest.mark.parametrize(
    "script",
    [script for script in SNAPSHOT if ALL or not script.in_soak],
    ids=lambda script: script.name,
)
def test_in_snapshot_mode(script: Script, runner: Runner) -> None:
    check(script, runner, "snapshot")


@pytest.mark.parametrize("name", ["data.early_stopping", "data.early_stopping_by_stop"])
def test_a_process_that_joins_at_the_end_ends_with_the_others(name: str, runner: Runner) -> None:
    alone = runner.run_alone(name)
    last = next(row.step for row in alone.rows if row.loss < ENDS_BELOW)
    run = runner.run_with_a_joiner_at(name, last)
    assert [each.code for each in run.ended] == [0, 0, 0], run
    assert verdict(run, alone, ends_early=True) == "same"
