"""The model as a live script sees it: one object over all changes of the process group.

A DistributedDataParallel divides by the world size at its construction. After a change it would
train wrongly without an error. So this module creates a new one for each membership. Each model of
a ModuleDict or ModuleList gets one of its own, because each has its own backward passes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer.elastic.bucket_exchange import hook_for
from ddpjob_trainer.elastic.gradient_exchange import GradientExchange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ElasticModel(nn.Module):
    """A model that is called like a DistributedDataParallel; `module` is the model itself."""

    def __init__(self, module: nn.Module, options: dict[str, Any], *, alone: bool = False) -> None:
        """Wrap `module`; with `alone`, another part exchanges gradients, so DDP is left out.

        Raise ValueError if two models of a ModuleDict or ModuleList share a parameter.
        """
        super().__init__()
        self.module = module
        self._options = options
        self._alone = alone
        self._current: list[nn.Module] = []  # a list hides it from nn.Module
        self._syncs = True  # the next backward pass exchanges gradients
        self._hook: tuple[Callable[[], object], Any] | None = None
        self._exchange = GradientExchange(module, alone=alone, may_repeat=self.is_static_graph)
        self._trained = {id(each) for each in module.parameters() if each.requires_grad}
        self._parameters_now: list[nn.Parameter] = []  # when the model was wrapped
        self._flags: list[bool] = []  # which of them were trained then
        self._stepped: dict[int, set[int]] = {}  # parameters that an optimizer changes, by ids
        self._models: dict[str, ElasticModel] = {}
        if isinstance(module, (nn.ModuleDict, nn.ModuleList)):
            self._models = {
                name: ElasticModel(each, options, alone=alone)
                for name, each in module.named_children()
            }
            _check_apart(module)

    # --- what a script calls ----------------------------------------------------------------------

    @torch._disable_dynamo(recursive=False)  # noqa: SLF001 - the public one imports dynamo at once
    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the model over the current group."""
        _check_not_compiled()
        return self.wrapped(*inputs, **options)

    def __getitem__(self, name: str | int) -> ElasticModel:
        """Return one of several models; it is called like `loop.model`. Raise KeyError."""
        return self._models[str(name)]

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the model itself in place, as torch.nn.Module.compile() does."""
        for each in self._leaves():
            each.module.compile(*arguments, **options)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Call the model itself, without collectives."""
        leaves = [*self._leaves()]
        before = [leaf._current for leaf in leaves]  # noqa: SLF001 - its own class
        for leaf in leaves:
            leaf._current = [leaf.module]  # noqa: SLF001 - its own class
        try:
            yield
        finally:
            for leaf, current in zip(leaves, before, strict=True):
                leaf._current = current  # noqa: SLF001 - its own class

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gather gradients only locally, as DistributedDataParallel.no_sync()."""
        with contextlib.ExitStack() as stack:
            for wrapper in self._wrappers():
                stack.enter_context(wrapper.no_sync())
            yield

    def join(self, *_: Any, **__: Any) -> None:
        """Raise RuntimeError: DistributedDataParallel.join() is for ranks with other numbers of batches."""
        raise RuntimeError(
            "leave join() out: all processes do the same steps, and their shares of a batch may have "
            "different sizes"
        )

    def register_comm_hook(self, make_state: Callable[[], object], hook: Any) -> None:
        """Exchange the gradients of every group by `hook(state, bucket)`; see DDP's method.

        `make_state()` returns the state for a new group. Raise RuntimeError at a second hook.
        """
        if self._alone:
            raise RuntimeError("deterministic mode exchanges gradients itself: it takes no hook")
        if self._hook is not None:
            raise RuntimeError("the model has a communication hook: it can have one only")
        self._hook = make_state, hook
        for each in self._leaves():
            each._hook = self._hook  # noqa: SLF001 - its own class
            if each._current:  # noqa: SLF001 - its own class
                each._wrap()  # noqa: SLF001 - its own class

    @property
    def wrapped(self) -> nn.Module:
        """The model over the current group. Raises RuntimeError outside of `with step:`."""
        if self._models:
            names = [int(name) if name.isdigit() else name for name in self._models]
            calls = " or ".join(f"loop.model[{name!r}](...)" for name in names)
            raise RuntimeError(f"loop.model has several models: call {calls}")
        if not self._current:
            raise RuntimeError("the model can be called in `with step:` only: now it has no group")
        if torch.is_grad_enabled() and self._flags != [
            each.requires_grad for each in self._parameters_now
        ]:
            self._wrap_others()
        return self._current[0]

    # --- what the loop calls ----------------------------------------------------------------------

    @property
    def is_static_graph(self) -> bool:
        """True if DDP expects the same backward pass each time."""
        return bool(self._options.get("static_graph"))

    def wrap(self) -> None:
        """Wrap the model for the current group, whose ranks have equal parameters."""
        for leaf in self._leaves():
            leaf._wrap()  # noqa: SLF001 - its own class

    def unwrap(self) -> None:
        """Drop the wrapper of the current group."""
        for leaf in self._leaves():
            leaf._current, leaf._syncs = [], True  # noqa: SLF001 - its own class

    def begin_step(self) -> None:
        """Begin a step: no gradient of it exists."""
        for leaf in self._leaves():
            leaf._exchange.begin()  # noqa: SLF001 - its own class

    @property
    def gradients(self) -> int:
        """The number of gradients since the step began."""
        return sum(leaf._exchange.count for leaf in self._leaves())  # noqa: SLF001 - its own class

    def sync_gradients(self, *, now: bool) -> None:
        """Set whether the next backward pass exchanges gradients."""
        for leaf in self._leaves():
            leaf._syncs = now  # noqa: SLF001 - its own class
        for wrapper in self._wrappers():
            wrapper.require_backward_grad_sync = now

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Check before each step of the optimizer that its gradients were exchanged.

        A step then raises RuntimeError.
        """
        optimizer.register_step_pre_hook(lambda *_: self._check(optimizer))

    # --- internal ---------------------------------------------------------------------------------

    def _wrap(self) -> None:
        self._parameters_now = [*self.module.parameters()]
        self._flags = [each.requires_grad for each in self._parameters_now]
        trained = [each for each in self._parameters_now if each.requires_grad]
        self._trained |= set(map(id, trained))
        self._exchange.watch()
        if self._alone or not trained:
            self._current = [self.module]
            return
        wrapper = _Wrapper(self.module, self._exchange, self._options)
        wrapper.require_backward_grad_sync = self._syncs
        hook = self._hook or hook_for(trained, self._options)
        if hook is not None:
            wrapper.exchange_by(*hook)
        self._current = [wrapper]

    def _wrap_others(self) -> None:
        """Wrap the model again: the script has frozen or unfrozen layers, on all ranks."""
        if self._exchange.is_open and not self._alone:
            raise RuntimeError(
                "layers were frozen or unfrozen between a forward pass and the exchange of its "
                "gradients. Do it before the first `loop.model(...)` of a step, on every rank in the "
                "same step"
            )
        self._wrap()

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001 - there is no public one
            raise RuntimeError(
                "an optimizer stepped within the backward pass, before the gradients were exchanged "
                "with the other processes: call optimizer.step() after the parts of the step"
            )
        stepped = self._changed_by(optimizer)
        for leaf in self._leaves():
            if stepped.isdisjoint(leaf._trained):  # noqa: SLF001 - its own class
                continue
            leaf._exchange.check(stepped)  # noqa: SLF001 - its own class
            for wrapper in leaf._wrappers():  # noqa: SLF001 - its own class
                wrapper.reducer._check_reducer_finalized()  # noqa: SLF001 - as DDP does itself

    def _changed_by(self, optimizer: torch.optim.Optimizer) -> set[int]:
        groups = [group["params"] for group in optimizer.param_groups]
        known = self._stepped.get(id(optimizer), set())
        if len(known) == sum(map(len, groups)):
            return known
        self._stepped[id(optimizer)] = {id(each) for group in groups for each in group}
        return self._stepped[id(optimizer)]

    def _leaves(self) -> Iterator[ElasticModel]:
        """Yield the models that are wrapped each: this one, or those of the ModuleDict."""
        if not self._models:
            yield self
        for each in self._models.values():
            yield from each._leaves()  # noqa: SLF001 - its own class

    def _wrappers(self) -> Iterator[_Wrapper]:
        for leaf in self._leaves():
            for each in leaf._current:  # noqa: SLF001 - its own class
                if isinstance(each, _Wrapper):
                    yield each


class _Wrapper(DistributedDataParallel):
    """A DistributedDataParallel of one group that records its forward passes."""

    _is_made = False

    def __init__(
        self, module: nn.Module, exchange: GradientExchange, options: dict[str, Any]
    ) -> None:
        super().__init__(module, init_sync=False, **options)
        self._record = exchange
        self._is_made = True

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and self.require_backward_grad_sync:
            self._record.expect()
        return super().forward(*inputs, **options)  # type: ignore[no-untyped-call]

    def exchange_by(self, make_state: Callable[[], object], hook: Any) -> None:
        """Exchange gradients by a hook, whose state is made for this group."""
        super().register_comm_hook(make_state(), hook)

    def register_comm_hook(self, state: object, hook: Any) -> None:
        """Raise RuntimeError: the hook would be lost with this group."""
        if not self._is_made:  # DDP registers a hook of its own
            super().register_comm_hook(state, hook)
            return
        raise RuntimeError(
            "a communication hook here is lost when workers join or leave: call "
            "loop.model.register_comm_hook(make_state, hook), which makes the state for each group"
        )


def _check_not_compiled() -> None:
    from torch._dynamo import eval_frame  # noqa: PLC0415 - it takes a second, in Loop's beginning

    if eval_frame._is_in_optimized_module():  # noqa: SLF001 - there is no public one
        raise RuntimeError(
            "torch.compile(loop.model) compiles nothing: compile the model itself, as "
            "Loop(torch.compile(model), optimizer)"
        )


def _check_apart(models: nn.Module) -> None:
    owners: dict[int, str] = {}
    for name, model in models.named_children():
        for path, parameter in model.named_parameters():
            owner = owners.setdefault(id(parameter), name)
            if owner != name:
                raise ValueError(
                    f"the models {owner!r} and {name!r} share the parameter {path!r}: each would "
                    "exchange its gradient. Make them one module, whose forward() does both parts"
                )
