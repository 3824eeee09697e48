"""Shards, the slices of a batch: how processes share them, and how their results are
summed.

A batch is cut into `trainer.shards` slices; on one process this is gradient
accumulation. The results of a slice depend only on that slice. Sums over slices follow
the same binary tree for any
number of processes:

    4 processes   (0 + 1) + (2 + 3)     each + is an exchange between two processes
    2 processes   (0 + 1) + (2 + 3)     only the + in the middle is an exchange
    1 process     (0 + 1) + (2 + 3)

Each process has the same number of consecutive slices, so its own sum is a node of the
tree; processes at distance 1, 2, 4, ... exchange their nodes, and both add them. This
does not use DistributedDataParallel, whose buckets, and thus the order of its sums,
follow the order in which gradients become ready; here an exchange begins when all of
them are ready.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from seedbed import dtensors, fingerprint
from seedbed.errors import InputError, Interrupted
from seedbed.pipeline.positions import Position
from seedbed.ranks import Ranks
from seedbed.training.optimizers import optimizer_tensors
from seedbed.training.state import TrainingState

T = TypeVar("T")


class Shards:
    """The slices of a batch, shared by one or several processes; by default, one
    slice."""

    def __init__(
        self,
        count: int = 1,  # with several processes: a power of two, at least their number
        asked_to_stop: Callable[[], bool] | None = None,
        # the processes that share the slices; None: this one alone
        ranks: Ranks | None = None,
        in_tree: bool = True,  # otherwise by all_reduce, in any order
        # `distributed.sharding`, which sums gradients across processes
        is_sharded: bool = False,
    ) -> None:
        self.count = count
        self.may_interrupt = asked_to_stop is not None
        self.asked_to_stop = asked_to_stop or (lambda: False)
        self.ranks = Ranks() if ranks is None else ranks
        self.is_sharded = is_sharded
        self._kept: dict[str, Any] = {}
        self.is_shared = self.ranks.count > 1
        # of sums, for any number of processes
        self.order_is_fixed = in_tree or not self.is_shared
        rank = self.ranks.rank
        size = count // self.ranks.count
        self.mine = range(rank * size, (rank + 1) * size)  # the slices of this process
        if is_sharded:
            self.mine = range(rank, count, self.ranks.count)
        self._flags: tuple[Tensor | None, Tensor | None] = (None, None)
        # from `begin` to the first forward passes
        self._training: TrainingState | None = None

    def stop_requested(self) -> bool:
        """Return whether any process was asked to stop.

        With several processes, this is as of the `reduce` before the last: flags are
        summed with gradients, so that all agree, and read late, when a GPU has the next
        step to work on.
        """
        if not self.is_shared:
            return self.asked_to_stop()
        return self._flags[0] is not None and bool(self._flags[0])

    def begin(self, training: TrainingState, step: int) -> None:
        """Note the initial state, and check that several processes agree and use no
        closures."""
        for name, optimizer in training.optimizers.items():
            needs_more = training.needs_closure[name] or training.method.create_graph
            if needs_more and self.is_shared:
                raise InputError(
                    "optimizer: expected one whose step() needs no closure (or"
                    " create_graph) with several processes, got"
                    f" {type(optimizer).__name__}; use trainer.processes=1"
                )
        self._training = training
        self.keep(training)
        self.compare(training, step)

    def keep(self, training: TrainingState) -> None:
        """Note the state of the model, for `require_kept`."""
        if self.is_shared:
            self._kept = bits_of_state(training.model)

    def require_kept(self, training: TrainingState, trained: Container[str]) -> None:
        """Raise InputError if a forward pass changed state other than that of `trained`
        names."""
        current = bits_of_state(training.model) if self.is_shared else {}
        for path in current | self._kept:
            if path not in trained and self._kept.get(path) != current.get(path):
                raise InputError(
                    f"model.{path}: expected state that no forward pass changes with"
                    " several processes, which share the slices of a batch, got one"
                    " that does; set trainer.processes=1, change it in on_step_end, or"
                    " use GroupNorm for BatchNorm"
                )

    def compare(self, training: TrainingState, step: int) -> None:
        """Raise InputError unless all processes have the same step and the same
        training state."""
        self.require_kept(training, training.to_train)
        if not self.is_shared:
            return
        tensors = [*training.model.parameters(), *training.model.buffers()]
        tensors += optimizer_tensors(*training.optimizers.values())
        # of one process
        tensors = [each for each in tensors if not dtensors.is_sharded(each)]
        states = self.ranks.gather((step, int(fingerprint.of_tensors(tensors))))
        usual, _ = Counter(states).most_common(1)[0]
        if drifted := [rank for rank, state in enumerate(states) if state != usual]:
            right = name_ranks([states.index(usual)])
            raise InputError(
                f"{name_ranks(drifted)}: expected the weights of {right} after step"
                f" {usual[0]}, got others (step {states[drifted[0]][0]}); look for what"
                " differs there, then resume from the last checkpoint with"
                " scripts/resume.py"
            )

    def divide(self, positions: Iterator[Position]) -> Iterator[Position]:
        for position in positions:
            size = len(position.ids) // self.count
            for index in self.mine:
                yield position.cut(index * size, (index + 1) * size)

    def share(self, positions: Sequence[Position]) -> Sequence[Position]:
        """Return this process's batches of an evaluation: consecutive ones, to keep the
        order."""
        rank = self.ranks.rank
        count = self.ranks.count
        n = len(positions)
        return positions[n * rank // count : n * (rank + 1) // count]

    def reduce(
        self, parts: Iterator[list[Tensor]], ours: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Return the means (of floats) or sums (of integers) over all slices of all
        processes.

        Args:
            parts: for each slice of this process, tensors of the same shapes. They are
                written in place, so nothing else may share their memory.
            ours: integer tensors of this process, to be summed over all processes.
        """
        rest: list[list[Tensor]] = []  # of each slice
        parts = self._only_gradients(parts, rest) if self.is_sharded else parts
        sums = tree_sum(parts, len(self.mine))
        if self._training is not None:  # before any update; later, `compare` checks
            self.require_kept(self._training, trained=())
            self._training = None
        if self.is_shared:
            flag = torch.tensor([float(self.asked_to_stop())], device=sums[0].device)
            to_sum = (
                [each for of_slice in rest for each in of_slice]
                if self.is_sharded
                else sums
            )
            self._sum_across([*to_sum, *ours, flag])
            self._flags = (self._flags[1], flag)
        sums = [*sums, *(tree_sum(iter(rest), len(rest)) if rest else ()), *ours]
        # Exact if `count` is a power of two, as with several processes.
        return [
            t / self.count if t.is_floating_point() or t.is_complex() else t
            for t in sums
        ]

    def _only_gradients(
        self, parts: Iterator[list[Tensor]], rest: list[list[Tensor]]
    ) -> Iterator[list[Tensor]]:
        """Yield what a backward pass has summed across processes; keep the rest of each
        part."""
        for part in parts:
            rest.append([each for each in part if not dtensors.is_sharded(each)])
            yield [each for each in part if dtensors.is_sharded(each)]

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Run `work` in every process; return all results, or raise Interrupted in all
        of them."""
        result: list[T] = []
        with suppress(Interrupted):  # the missing result tells the others
            result = [work()]
        results = self.ranks.gather(result)
        if not all(results):
            raise Interrupted
        return [of_process for (of_process,) in results]

    def _sum_across(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over all processes, in place: each keeps its memory order and
        alignment.

        They are sent as one buffer per device and dtype, since CPU and GPU use
        different backends.
        """
        for device in dict.fromkeys(tensor.device for tensor in tensors):
            groups = _by_dtype(tensors, device)
            # Not kept here: buffers are freed as soon as their sums exist.
            sums = self._sum_buffers(
                [torch.cat([each.reshape(-1) for each in group]) for group in groups]
            )
            for buffer, group in zip(sums, groups, strict=True):
                pieces = torch.split(buffer, [each.numel() for each in group])
                for piece, tensor in zip(pieces, group, strict=True):
                    tensor.copy_(piece.view(tensor.shape))

    def _sum_buffers(self, ours: list[Tensor]) -> list[Tensor]:
        """Return the sums of buffers over all processes."""
        if not self.order_is_fixed:
            self.ranks.sum_in_any_order(ours)
            return ours
        for partner in self.ranks.partners():
            theirs = [torch.empty_like(buffer) for buffer in ours]
            self.ranks.exchange(ours, theirs, partner)
            # Lower rank first: a + b is b + a, except for the payload of NaN.
            pairs = (ours, theirs) if self.ranks.rank < partner else (theirs, ours)
            ours = [low + high for low, high in zip(*pairs, strict=True)]
        return ours


def _by_dtype(tensors: Sequence[Tensor], device: torch.device) -> list[list[Tensor]]:
    """Return the tensors of a device, those of one dtype together; raise InputError for
    a sparse one of any device."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        # indices differ between processes
        if tensor.layout is not torch.strided:
            raise InputError(
                "model: expected dense gradients with several processes, got a sparse"
                " one; build the layer with sparse=False"
            )
        if tensor.device == device:
            groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())


@torch.no_grad()
def bits_of_state(model: nn.Module) -> dict[str, Any]:
    """Return a hash of each buffer and parameter, and each pickled extra state, by
    name."""
    tensors = dict(model.named_buffers()) | dict(model.named_parameters())
    hashes = (
        fingerprint.of_lists([[each] for each in tensors.values()]).tolist()
        if tensors
        else []
    )
    # covers dtypes and shapes
    bits: dict[str, Any] = dict(zip(tensors, hashes, strict=True))
    for path, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            bits[f"{path}.get_extra_state()".lstrip(".")] = pickle.dumps(
                module.get_extra_state()
            )
    return bits


def tree_sum(parts: Iterator[list[Tensor]], count: int) -> list[Tensor]:
    """Sum `count` lists of tensors in a binary tree, as they come.

    If `count` is not a power of two, the tree is that of the next power without its
    last leaves. At most log2(count) + 1 lists are held at a time.
    """
    if count == 1:
        return next(parts)
    half = 1 << ((count - 1).bit_length() - 1)
    # in this order
    left = tree_sum(parts, half)
    right = tree_sum(parts, count - half)
    # gradients may share memory
    return [a + b for a, b in zip(left, right, strict=True)]


def name_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
