"""What a processor cannot do is refused in one line, or said; on every processor alike."""

import os
import platform
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seedbed import determinism, record
from seedbed.determinism.running import read_preset
from seedbed.errors import InputError
from seedbed.operations import refusals
from seedbed.worker import assemble
from tests.running import QUICK, command, refusal, train, trained

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
ASK = """
import torch
from seedbed.operations import refusals
try:
    with torch.autocast("cpu", torch.bfloat16):
        torch.nn.LSTM(2, 8)(torch.ones(3, 4, 2))
    computed = True
except RuntimeError:
    computed = False
print(computed, refusals.computes_bfloat16())
"""
needs_x86_64 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="the variables are those of x86-64"
)


def asked(**variables: str) -> list[str]:
    """Return whether an LSTM in bfloat16 computes, and whether it is said to, in a new process."""
    words = [sys.executable, "-c", ASK]
    environment = {**os.environ, **variables}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.processor
def test_an_lstm_computes_in_bfloat16_exactly_where_it_is_said_to() -> None:
    """The answer is the processor's, with what the caller's variables leave of it."""
    computed, said = asked()
    assert said == computed


@needs_x86_64
def test_a_processor_without_avx512_does_not_compute_in_bfloat16() -> None:
    """Negative control: any x86-64 processor held to AVX2 is one on which it cannot."""
    assert asked(**AVX2) == ["False", "False"]


@needs_x86_64
@pytest.mark.long
def test_an_lstm_in_bfloat16_is_refused_before_training_and_has_a_way_out(tmp_path: Path) -> None:
    """One line names the layer and two settings that work; the second one is tried."""
    words = ("model=lstm", "trainer.precision=bfloat16", "trainer.max_steps=1")
    held = tuple(f"++determinism.env.{name}={value}" for name, value in AVX2.items())
    message = refusal(train(tmp_path / "refused", *QUICK, *words, *held))
    assert message.startswith("trainer.precision: expected float32 for layer, an LSTM, on a ")
    assert not (tmp_path / "refused" / "checkpoints" / "last.pt").exists()
    trained(tmp_path / "run", *words, *held, "determinism.mkldnn.enabled=false")


@needs_x86_64
def test_what_a_machine_takes_from_its_processor_is_part_of_the_run(tmp_path: Path) -> None:
    """Many set such variables for all their users. A shell without them gives the same bits."""
    limits = {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"}
    run = trained(tmp_path / "run", environment=limits)
    kept = record.read_config(run).determinism.env
    assert {name: kept[name] for name in limits} == limits
    done = command("scripts/verify.py", str(run))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("device", "autocast", "supported", "onednn", "refused"),
    [
        ("cpu", True, False, True, True),
        ("cuda", True, False, True, False),
        ("cpu", False, False, True, False),
        ("cpu", True, True, True, False),
        ("cpu", True, False, False, False),
    ],
)
def test_precision_is_refused_only_where_it_would_fail(
    device: str, autocast: bool, supported: bool, onednn: bool, refused: bool, monkeypatch: Any
) -> None:
    """Each condition alone lifts the refusal; a model without an LSTM is never refused."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", onednn)
    monkeypatch.setattr(refusals, "computes_bfloat16", lambda: supported)
    refusals.check_precision(nn.Sequential(nn.GRU(2, 2)), device, autocast)
    with pytest.raises(InputError) if refused else nullcontext():
        refusals.check_precision(nn.Sequential(nn.LSTM(2, 2)), device, autocast)


@pytest.mark.parametrize(("name", "refused"), [("portable", True), ("strict", False)])
def test_portable_is_refused_on_arm_and_strict_is_not(
    name: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What portable pins are libraries for x86-64: nothing is said of mkl_branch or of AVX."""
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(determinism, "apply", lambda _: None)
    monkeypatch.setattr(determinism, "differences", lambda _: [])
    said = "an x86-64 processor, which determinism=portable is for, got arm64; choose"
    with pytest.raises(InputError, match=said) if refused else nullcontext():
        assemble.prepare_backends(read_preset(name))
