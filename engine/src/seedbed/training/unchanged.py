"""The check that code which may only read has changed nothing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

from seedbed.errors import InputError
from seedbed.fingerprint import of_tensors


class Watched(NamedTuple):
    """What may not change, and how that is seen."""

    # writes to `.data`, and those of kernels, leave no other trace
    by_bits: Iterable[Tensor] = ()
    # by PyTorch's counters of writes, which cost nothing
    by_version: Iterable[Tensor] = ()
    options: object = ()  # by their `repr`

    def state(self) -> tuple[int, list[int], str]:
        tensors = list(self.by_bits)
        bits = int(of_tensors(tensors)) if tensors else 0
        return bits, [tensor._version for tensor in self.by_version], repr(self.options)


@contextmanager
def unchanged(
    model: nn.Module, watched: Callable[[], Watched], refusal: str
) -> Iterator[None]:
    """Restore the mode of each module on exit; raise InputError if what is watched has
    changed."""
    modes = [(module, module.training) for module in model.modules()]
    before = watched().state()
    try:
        yield
    finally:
        # Setting the flag is not enough: some models override `train`, e.g. to merge
        # adapters.
        for module, mode in modes:
            if module.training != mode:
                module.train(mode)
    if watched().state() != before:
        raise InputError(refusal)
