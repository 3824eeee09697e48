"""What only CUDA has: calls that wait, and two devices."""

from pathlib import Path

import pytest
import torch

from seedbed import fingerprint
from seedbed.methods import Supervised
from seedbed.training import checkpoint
from seedbed.training.optimizers import optimizer_tensors
from seedbed.training.state import Progress, TrainingState
from tests.gpu.gates import DEVICE, ON_CUDA

pytestmark = ON_CUDA


def test_fingerprints_of_a_step_wait_for_nothing() -> None:
    """Lists on both devices, more than there is room for, step after step; negative control:
    `int()` waits."""
    lists = [[torch.arange(64)], [torch.randn(3_000_000)], [], [torch.ones(5), torch.ones(7)]]
    expected = fingerprint.of_lists(lists).tolist()
    there = [lists[0], *([tensor.to(DEVICE) for tensor in each] for each in lists[1:])]
    hasher = fingerprint.Hasher(torch.device(DEVICE))

    def step() -> torch.Tensor:
        hasher.add(*there)
        return hasher.hashes()

    step()  # makes the room
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [step(), step()]
        with pytest.raises(RuntimeError, match="synchroniz"):
            int(found[0][0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [each.tolist() for each in found] == [expected, expected]


def test_a_checkpoint_brings_each_tensor_back_to_its_device(tmp_path: Path) -> None:
    """What an optimizer keeps on the CPU beside a model on the GPU, and under a name of its own."""

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(3, 2, device=DEVICE)
        model.register_buffer("seen", None, persistent=False)
        return model, torch.optim.NAdam(model.parameters())

    (model, optimizer), (other, fresh) = made(), made()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    model.seen = torch.ones(2, device=DEVICE)
    own = {"table": torch.ones(2), "average": torch.ones(2, device=DEVICE)}
    optimizer.state["own"] = own  # type: ignore[index]
    device = torch.device(DEVICE)
    training = TrainingState(model, {"optimizer": optimizer}, Supervised(), device)
    checkpoint.save(checkpoint.capture(training, Progress()), tmp_path / "last.pt")
    saved = checkpoint.load(tmp_path / "last.pt", device)
    checkpoint.restore(TrainingState(other, {"optimizer": fresh}, Supervised(), device), saved)

    def places(optimizer: torch.optim.Optimizer) -> list[torch.device]:
        return [tensor.device for tensor in optimizer_tensors(optimizer)]

    assert places(fresh) == places(optimizer)
    assert other.seen.device == model.seen.device
