"""CUDA graphs (`trainer.cuda_graph`): all kernels of a pass are launched at once.

Small models are bound by the time that it takes to launch their kernels one by one.
Captured are the forward and backward passes of a slice, for each kind of batch. Seeds,
clipping, the optimizer and fingerprints stay outside: a graph keeps the numbers of its
capture, such as a learning rate, and what PyTorch's optimizers compute with tensors
instead (`capturable=True`) has other bits.

What else could change numbers of Python between steps is not captured: the model is the
only code of the user's in a graph, and in three steps it must neither draw on the CPU
nor change or replace anything but the contents of its weights and buffers. A capture
runs nothing. Before its graph is used, two steps are taken both ways, and every
gradient, value, weight and buffer must have the same bits. Where all of this does not
hold, or PyTorch cannot capture the passes, the run says so in a line and runs them
eagerly.

Untried on a GPU: tests/training/test_graphs.py replays traces on the CPU instead.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from seedbed import fingerprint, rng, tasks
from seedbed.config.settings import Trainer
from seedbed.errors import InputError, one_line
from seedbed.pipeline.source import Batch
from seedbed.pipeline.tensors import as_text, tensors_of
from seedbed.training.state import Passes, TrainingState

KEY = "trainer.cuda_graph"
EAGER = f"{KEY}: not captured, running eagerly"  # before the reason
# In their first calls, libraries choose kernels and allocate memory, which no capture
# may; PyTorch's `make_graphed_callables` takes three, too.
_WARM_UP = 3
_CHECKED = 2  # compared replays: two, so that what differs from step to step is noticed
_MOST_KINDS = 8  # each has memory of its own: texts of many lengths would fill the GPU
_PLAIN = (bool, int, float, str, type(None))  # what a batch may have besides tensors
_HOOKS = ("training_step", "updates", "trainable", "on_step_end", "epoch_values")

# Captures work without running it; returns its results, and what computes them anew.
Record = Callable[[Callable[[], Passes]], tuple[Passes, Callable[[], None]]]


class NotCaptured(Exception):
    """Says why passes are run eagerly."""


@dataclass
class _Kind:
    """Batches of one structure, and their graph."""

    seen: int = 0  # batches so far
    inputs: list[Tensor] = field(default_factory=list)  # that the graph reads
    results: Passes | None = None  # that the graph writes
    replay: Callable[[], None] | None = None
    places: list[int] = field(default_factory=list)  # of weights and buffers, in memory


def obstacle(training: TrainingState, trainer: Trainer) -> str | None:
    """Return why the passes of a run cannot be captured, or None."""
    method = training.method
    name = type(method).__name__
    # Code of the user's, which may follow numbers that it changes from step to step.
    own = [hook for hook in _HOOKS if training.overrides(hook)]
    reasons = {
        f"the device is {training.device.type}": training.device.type != "cuda",
        "trainer.sharding=full gathers weights": training.sharding.is_sharded,
        "float16 has a loss scale that changes": trainer.precision == "float16",
        f"trainer.compile={trainer.compile} captures graphs of its own": trainer.compile
        not in (False, True, "default"),
        "trainer.detect_anomaly looks at each result": trainer.detect_anomaly,
        "determinism.seeding=false draws other numbers in a second pass": (
            training.dropout_seed is None
        ),
        "there are several optimizers": len(training.optimizers) > 1,
        "an optimizer takes the passes several times": any(
            training.needs_closure.values()
        ),
        f"{name} has create_graph": method.create_graph,
        f"{name} has {''.join(own[:1])} of its own": own,
        "data.task has code of its own": type(method.task).__module__ != tasks.__name__,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def of_run(
    training: TrainingState, trainer: Trainer, log: Callable[[str], None]
) -> "Graphs | None":
    """Return what captures the passes of a run, if it asks for that and can."""
    if not trainer.cuda_graph:
        return None
    if reason := obstacle(training, trainer):
        log(f"{EAGER}: {reason}")
        return None
    return Graphs(training.model, log)


def of_cuda(work: Callable[[], Passes]) -> tuple[Passes, Callable[[], None]]:
    """Capture work in a CUDA graph, whose memory is its own."""
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as that of `pin_memory`, may call CUDA meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = work()
    return results, graph.replay


class Graphs:
    """Takes the passes of slices: from the fourth batch of a kind on, by its graph."""

    def __init__(
        self,
        model: nn.Module,
        log: Callable[[str], None],
        record: Record = of_cuda,
        # the state of generators whose draws are numbers of Python
        host_generators: Callable[[], object] = rng.state,
    ) -> None:
        self._model = model
        self._log = log
        self._record = record
        self._host_generators = host_generators
        self._kinds: dict[Hashable, _Kind] = {}
        self._is_off = False
        self._is_said = False

    def passes(
        self,
        seed: Callable[[], None],
        take: Callable[[Batch], Passes],
        batch: Batch,
        what: Hashable,  # is taken, of the same batch
    ) -> Passes:
        """Return the results of `take` for a batch, after `seed`, with the same
        bits."""
        if not self._is_off:
            try:
                return self._by_graph(seed, take, batch, what)
            except NotCaptured as reason:
                self._give_up(str(reason))
        seed()
        return take(batch)

    def _by_graph(
        self,
        seed: Callable[[], None],
        take: Callable[[Batch], Passes],
        batch: Batch,
        what: Hashable,
    ) -> Passes:
        leaves, structure = tree_flatten((batch.inputs, batch.targets))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        kind = self._kind_of(leaves, what, structure)
        kind.seen += 1
        if kind.seen <= _WARM_UP:
            return self._warm_up(seed, take, batch)
        if kind.replay is None:
            held = _Held(self._model)
            try:
                kind.inputs = [_copy(tensor) for tensor in tensors]
                static = iter(kind.inputs)
                filled = [next(static) if isinstance(x, Tensor) else x for x in leaves]
                inputs = Batch(batch.ids, *tree_unflatten(filled, structure))
                seed()
                kind.results, kind.replay = self._record(lambda: take(inputs))
            except RuntimeError as error:
                held.restore()  # what a pass that was not run has replaced
                raise NotCaptured(one_line(error)) from error
            if changed := held.changed():
                held.restore()
                raise NotCaptured(f"the forward pass changes {changed}")
            kind.places = self._places()
        if kind.places != self._places():
            raise NotCaptured("weights or buffers have moved in memory")
        for tensor, given in zip(kind.inputs, tensors, strict=True):
            tensor.copy_(given)
        if kind.seen <= _WARM_UP + _CHECKED:
            return self._checked(kind, seed, take, batch)
        seed()
        return self._replayed(kind)

    def _kind_of(self, leaves: list[Any], what: Hashable, structure: Any) -> _Kind:
        """Return the kind of a batch; raise NotCaptured if there can be none."""
        key: list[Hashable] = [what, str(structure)]
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                key.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device))
            elif isinstance(leaf, _PLAIN):
                key.append((type(leaf), repr(leaf)))  # 0.0 is not -0.0
            else:
                raise NotCaptured(f"a batch has a {type(leaf).__name__}")
        kind = self._kinds.setdefault(tuple(key), _Kind())
        if len(self._kinds) > _MOST_KINDS:
            raise NotCaptured(f"batches have more than {_MOST_KINDS} shapes")
        return kind

    def _warm_up(
        self, seed: Callable[[], None], take: Callable[[Batch], Passes], batch: Batch
    ) -> Passes:
        """Take passes without a graph; they must not use numbers of Python that differ
        from step to step, since a graph keeps the first."""
        held = _Held(self._model)
        seed()
        drawn = self._host_generators()
        passes = take(batch)
        if changed := held.changed():
            self._give_up(f"the forward pass changes {changed}")
        elif self._host_generators() != drawn:
            self._give_up("the passes draw random numbers on the CPU")
        return passes

    def _give_up(self, reason: str) -> None:
        self._is_off = True
        self._kinds.clear()  # and their memory
        self._log(f"{EAGER}: {reason}")

    def _checked(
        self,
        kind: _Kind,
        seed: Callable[[], None],
        take: Callable[[Batch], Passes],
        batch: Batch,
    ) -> Passes:
        """Take passes both ways from the same weights and buffers; they must have the
        same bits."""
        state = self._state()
        before = [tensor.clone() for tensor in state]
        seed()
        expected = take(batch)
        after = [tensor.clone() for tensor in state]
        bits = _bits(expected, state)
        _fill(state, before)
        seed()
        replayed = self._replayed(kind)
        if _bits(replayed, state) != bits or replayed.used != expected.used:
            _fill(state, after)
            self._give_up(
                "a replay has other bits than the eager step; a graph keeps each Python"
                " number that it was captured with"
            )
            return expected
        if kind.seen == _WARM_UP + _CHECKED and not self._is_said:
            self._is_said = True
            self._log(
                f"{KEY}: captured forward and backward passes; {_CHECKED} replays have"
                " the bits of eager steps"
            )
        return replayed

    def _replayed(self, kind: _Kind) -> Passes:
        assert kind.replay is not None
        assert kind.results is not None
        kind.replay()
        results = kind.results
        values = {name: value.clone() for name, value in results.values.items()}
        # An optimizer or a callback may keep them, and other slices follow.
        gradients = [gradient.clone() for gradient in results.gradients]
        return Passes(gradients, values, results.used)

    def _state(self) -> list[Tensor]:
        tensors = (*self._model.parameters(), *self._model.buffers())
        return [tensor.detach() for tensor in tensors]

    def _places(self) -> list[int]:
        tensors = (*self._model.parameters(), *self._model.buffers())
        return [tensor.data_ptr() for tensor in tensors]


class _Held:
    """What the modules of a model hold: tensors, by identity, and all else."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._attributes = {
            path: dict(vars(module)) for path, module in self._modules.items()
        }
        # of parameters, buffers, parts and hooks
        self._registered = {
            (path, name): dict(value)
            for path, attributes in self._attributes.items()
            for name, value in attributes.items()
            if isinstance(value, dict)
        }
        self._alive: list[
            list[Tensor]
        ] = []  # so that none gets the identity of another
        self._states = self._states_by_name()

    def changed(self) -> str | None:
        """Return the name of something that has been changed or replaced since, but for
        the contents of parameters and buffers, or None."""
        states = self._states_by_name()
        for name in {**self._states, **states}:
            if states.get(name) != self._states.get(name):
                return name
        return None

    def restore(self) -> None:
        """Put back what was held, as far as it has been replaced."""
        for path, attributes in self._attributes.items():
            held = self._modules[path].__dict__
            held.clear()
            held.update(attributes)
        for (path, name), value in self._registered.items():
            registered = self._attributes[path][name]
            registered.clear()
            registered.update(value)

    def _states_by_name(self) -> dict[str, object]:
        """Return what is compared: which tensors there are, and other values as
        texts."""
        states: dict[str, object] = {}
        for path, module in self._modules.items():
            prefix = f"model.{path}".rstrip(".")
            for name, value in vars(module).items():
                key = f"{prefix}.{name}"
                if name in ("_parameters", "_buffers"):  # their contents may change
                    for own_name, tensor in value.items():
                        states[f"{prefix}.{own_name}"] = id(tensor)
                elif name == "_modules":
                    states[key] = [id(part) for part in value.values()]
                else:
                    states[key] = self._state_of(key, value)
        return states

    def _state_of(self, name: str, value: object) -> object:
        try:
            tensors = [*tensors_of(value)]
        except InputError as error:
            raise NotCaptured(f"what {name} holds is not known ({error})") from error
        self._alive.append(tensors)
        found = [(id(tensor), tensor._version) for tensor in tensors]
        return found if isinstance(value, Tensor) else (found, as_text(value))


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, in memory of the graph's own."""
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def _bits(passes: Passes, state: Iterable[Tensor]) -> int:
    tensors = [*passes.gradients, *passes.values.values(), *state]
    return int(fingerprint.of_tensors(tensors))


def _fill(tensors: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
