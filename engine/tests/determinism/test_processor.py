"""What a processor cannot do is refused in one line, or said; on every processor alike."""

import platform
from contextlib import nullcontext
from pathlib import Path

import pytest

from seedbed import determinism, launch, record
from seedbed.determinism.running import read_preset
from seedbed.errors import InputError
from seedbed.worker import assemble
from tests.running import QUICK, refusal, train, trained, typed

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
needs_x86_64 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="the variables are those of x86-64"
)


@needs_x86_64
@pytest.mark.long
def test_an_lstm_in_bfloat16_is_refused_on_avx2_and_has_a_way_out(tmp_path: Path) -> None:
    """One line names the layer and two settings that work; the second one is tried."""
    words = ("model=lstm", "trainer.precision=bfloat16", "trainer.max_steps=1")
    held = tuple(f"++determinism.env.{name}={value}" for name, value in AVX2.items())
    message = refusal(train(tmp_path / "refused", *QUICK, *words, *held))
    assert message.startswith("trainer.precision: expected float32 for an LSTM on a ")
    assert "in module layer" in message
    trained(tmp_path / "run", *words, *held, "determinism.mkldnn.enabled=false")


@needs_x86_64
def test_what_a_machine_takes_from_its_processor_is_part_of_the_run(tmp_path: Path) -> None:
    """Many set such variables for all their users; a shell without them trains under them again."""
    limits = {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"}
    run = trained(tmp_path / "run", environment=limits)
    kept = record.read_config(run).determinism.env
    assert {name: kept[name] for name in limits} == limits
    again = launch.training_environment(record.read_config(run))
    assert {name: again[name] for name in limits} == limits


@pytest.mark.parametrize(("name", "refused"), [("portable", True), ("strict", False)])
def test_portable_is_refused_on_arm_and_strict_is_not(
    name: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What portable pins are libraries for x86-64: nothing is said of mkl_branch or of AVX."""
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(determinism, "apply", lambda _: None)
    monkeypatch.setattr(determinism, "differences", lambda _: [])
    said = "determinism.avx: expected an x86-64 processor, got arm64"
    with pytest.raises(InputError, match=said) if refused else nullcontext():
        assemble.prepare_backends(typed(determinism=read_preset(name)))
