"""Second gate, equivalence: what the CPU decides is the same bits on the GPU."""

from pathlib import Path

import pytest
import torch

from seedbed import config, fingerprint
from seedbed.worker import assemble, experiment
from tests.golden import runs
from tests.gpu.gates import DEVICE, GATE, MODELS, configuration

pytestmark = GATE


def initial_weights(device: str, model: str, *overrides: str) -> str:
    typed = config.check(configuration(model, *overrides))
    training = assemble.build_training_state(typed, torch.device(device))
    assert {p.device.type for p in training.model.parameters()} == {torch.device(device).type}
    return experiment.hash_of(training.model.parameters())


@pytest.mark.parametrize("preset", ["strict", "seeded"])
@pytest.mark.parametrize("model", MODELS)
def test_initial_weights_are_those_of_the_cpu(model: str, preset: str) -> None:
    """Weights are drawn on the CPU: CUDA's generator depends on the GPU."""
    on_gpu = initial_weights(DEVICE, model, f"determinism={preset}")
    assert on_gpu == initial_weights("cpu", model, "determinism=strict")
    # Negative control: another seed gives others.
    assert on_gpu != initial_weights(DEVICE, model, f"determinism={preset}", "seeds.init=1")


@pytest.mark.parametrize("model", MODELS)
def test_order_and_batches_are_the_same(
    model: str, undisturbed: dict[str, runs.FingerprintRows], tmp_path: Path
) -> None:
    """As on the CPU, and under seeded: the same samples, augmented alike; kernels may differ."""
    changes = {"cpu": "trainer.device=cpu", "seeded": "determinism=seeded"}
    settings = {name: configuration(model, change) for name, change in changes.items()}
    for rows in runs.train(tmp_path, settings).values():
        for ours, strict in zip(rows, undisturbed[model], strict=True):
            assert ours["sample_ids"] == strict["sample_ids"]
            assert ours["batch"] == strict["batch"]


DTYPES = (
    torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 1000, 3_000_000])
def test_equal_tensors_have_equal_fingerprints_on_both(dtype: torch.dtype, size: int) -> None:
    """A fingerprint is of the bits, wherever they lie."""
    numbers = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(0))
    tensor = (numbers * 100).to(dtype)
    there = tensor.to(DEVICE)
    assert int(fingerprint.of_tensors([there])) == int(fingerprint.of_tensors([tensor]))
    other = there.clone()
    other[-1] = other[-1] == 0  # negative control: one element differs
    assert int(fingerprint.of_tensors([other])) != int(fingerprint.of_tensors([tensor]))
