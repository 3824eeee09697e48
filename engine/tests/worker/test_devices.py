"""Which device a process works on, counted where no GPU is at hand."""

import pytest
import torch

from seedbed.worker import assemble


@pytest.mark.parametrize(("name", "set_to"), [("cuda:1", ["cuda:1"]), ("cpu", [])])
def test_a_gpu_becomes_the_current_one(
    name: str, set_to: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that says `device="cuda"` and NCCL use the current one; negative control: the CPU."""
    current: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(str(device)))
    assert str(assemble.choose_device(name)) == name
    assert current == set_to
