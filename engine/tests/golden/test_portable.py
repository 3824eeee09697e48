"""Under portable, this CPU has the golden fingerprints of the repository."""

from pathlib import Path

import pytest

from seedbed import record
from tests.determinism.test_determinism import (
    applied,
    environment_of,
    needs_x86_64,
    preset,
)
from tests.golden import runs
from tests.running import TEMPLATE, made_once, printed

VERSIONS = record.read_json(runs.GOLDEN)
GOLDEN = VERSIONS.get(runs.TORCH, {})
of_this_torch = pytest.mark.skipif(
    not GOLDEN, reason=f"no golden fingerprints of torch {runs.TORCH} in the file"
)


@pytest.fixture(scope="module")
def trained(shared: Path) -> Path:
    """Train every model, and the RNN with another seed; return the folder of the
    runs."""

    def train(place: Path) -> None:
        settings = {name: runs.configuration(name) for name in runs.EXPERIMENTS}
        runs.train(
            place, settings | {"other seed": runs.configuration("rnn", "seed=1")}
        )

    return made_once(shared / "golden", train)


@needs_x86_64
@of_this_torch
@pytest.mark.parametrize("model", runs.EXPERIMENTS)
def test_this_cpu_has_the_golden_fingerprints(model: str, trained: Path) -> None:
    """Every stage of every step is the same as on the CPU that the file was made on."""
    assert runs.fingerprint_rows(trained / model) == GOLDEN[model], (
        "meant to change results? python -m tests.golden.runs"
    )


@needs_x86_64
@of_this_torch
def test_another_seed_is_another_fingerprint(trained: Path) -> None:
    """Negative control: another seed misses the golden fingerprints from the first step
    on."""
    other = runs.fingerprint_rows(trained / "other seed")
    assert other[0]["sample_ids"] != GOLDEN["rnn"][0]["sample_ids"]


def test_the_pinned_torch_has_golden_fingerprints() -> None:
    """So the tests above are never skipped for the version that `make install`
    installs."""
    pins = (TEMPLATE / "requirements.txt").read_text().splitlines()
    (torch,) = (
        pin.removeprefix("torch==") for pin in pins if pin.startswith("torch==")
    )
    assert set(VERSIONS[torch]) == set(runs.EXPERIMENTS)


@needs_x86_64
def test_every_library_reports_its_pin() -> None:
    """Missing pins of PyTorch and MKL are reported; oneDNN, if verbose, prints the
    pinned AVX."""
    portable = preset("portable")
    pinned = environment_of(portable)
    loose = {
        k: v
        for k, v in pinned.items()
        if not k.startswith(("ATEN", "MKL_CBWR", "ONEDNN"))
    }
    [(_, lines)] = applied(portable, loose)
    assert any(
        line.startswith("determinism.mkl_branch: expected COMPATIBLE") for line in lines
    )
    assert any(
        line.startswith("ATEN_CPU_CAPABILITY: expected default") for line in lines
    )
    program = "import torch; torch.nn.Conv2d(16, 32, 3)(torch.ones(64, 16, 28, 28))"
    lines = printed("-c", program, environment=pinned | {"ONEDNN_VERBOSE": "1"})
    [onednn] = [line for line in lines if ",cpu,isa:" in line]
    assert onednn.endswith(",isa:Intel AVX")


@needs_x86_64
@of_this_torch
@pytest.mark.long
@pytest.mark.processor
def test_without_pytorchs_pin_attention_and_gans_have_other_bits(
    tmp_path: Path,
) -> None:
    """Negative control: PyTorch's AVX2 kernels have other results than those of
    portable."""
    loose = (
        "determinism.env.ATEN_CPU_CAPABILITY=avx2",
        "determinism.cpu_capability=AVX2",
    )
    settings = {
        name: runs.configuration(name, *loose) for name in ("gpt", "gan", "wgan")
    }
    for name, rows in runs.train(tmp_path, settings).items():
        assert rows[0] != GOLDEN[name][0]
