"""The probe sees every bit that does not come back, and says what it could not try."""

import csv
import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from seedbed import determinism
from seedbed.probe.catalog import catalogue
from seedbed.probe.operation import Operation, floats
from seedbed.probe.probe import Finding, Trial, largest_difference, probe, same_bits

ROOT = Path(__file__).resolve().parents[3]
FAST, STRICT = (
    OmegaConf.load(ROOT / "configs" / "determinism" / f"{preset}.yaml")
    for preset in ("fast", "strict")
)
NAMED = """
    index_add index_copy index_put scatter_add scatter_reduce put gather bincount histc embedding
    embedding_bag ctc_loss nll_loss cumsum median kthvalue svd_lowrank grid_sample index_select
    repeat_interleave index_reduce x[list scatter
    interpolate.nearest interpolate.nearest-exact interpolate.area interpolate.linear
    interpolate.bilinear interpolate.bicubic interpolate.trilinear
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    fractional_max_pool2d fractional_max_pool3d max_unpool1d max_unpool2d max_unpool3d
    reflect.pad.1d reflect.pad.2d reflect.pad.3d replicate.pad.1d replicate.pad.2d replicate.pad.3d
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d bmm.sparse-dense
    RNN RNN.dropout LSTM LSTM.dropout GRU GRU.dropout
    attention.math attention.flash attention.memory-efficient attention.cuDNN
    empty empty_like resize_ quantized.resize_
"""


def probed(call, *inputs, repeats: int = 3) -> Finding:
    return probe(Operation("tried", call, inputs), "cpu", FAST, STRICT, repeats)


def bits(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize("name", NAMED.split())
def test_every_named_operation_is_in_the_catalogue(name: str) -> None:
    """What documentation calls nondeterministic is tried."""
    words = name.replace(".", " ")

    assert any(f"{op.name} ".startswith(f"{words} ") for op in catalogue())


def test_no_two_entries_share_a_name() -> None:
    """A row of the table belongs to one operation."""
    names = [op.name for op in catalogue()]

    assert len(names) == len(set(names))


@pytest.mark.long
def test_every_operation_runs_on_this_cpu() -> None:
    """Under fast each runs, but for three kernels; under strict each repeats or raises."""
    one_thread = [OmegaConf.merge(preset, {"threads": 1}) for preset in (FAST, STRICT)]

    findings = [probe(op, "cpu", *one_thread, repeats=1) for op in catalogue()]

    assert [f.operation for f in findings if f.fast.raised or f.strict.differs_in] == []
    assert {f.operation for f in findings if f.unavailable} <= {
        "attention flash dropout",
        "attention memory-efficient",
        "attention cuDNN",
        "interpolate lanczos 2d antialias",  # not in PyTorch 2.11
    }


@pytest.mark.parametrize(
    "name", ["index_put accumulate", "x[index tensor]", "put accumulate", "take", "index_copy"]
)
def test_strict_keeps_its_word_where_threads_race(name: str) -> None:
    """Additions that two threads of a CPU race to make come back under strict."""
    operation = next(op for op in catalogue() if op.name == name)

    finding = probe(operation, "cpu", FAST, STRICT, repeats=5)

    assert (finding.strict.raised, finding.strict.differs_in) == ("", "")


def test_memory_that_nobody_wrote_does_not_come_back() -> None:
    """torch.empty differs under fast and repeats under strict, which fills it."""
    finding = probed(lambda x: torch.empty(1000), floats(1000))

    assert finding.fast.differs_in == "forward"
    assert finding.strict.differs_in == ""


def test_memory_that_was_written_comes_back() -> None:
    """The negative control: torch.zeros repeats under both."""
    finding = probed(lambda x: torch.zeros(1000), floats(1000))

    assert (finding.fast.differs_in, finding.strict.differs_in) == ("", "")


def test_a_forward_pass_that_changes_is_seen() -> None:
    """An output that grows by a millionth from run to run is seen, and by how much."""
    count = itertools.count()

    finding = probed(lambda x: x.double() + next(count) * 1e-6, floats(10), repeats=1)

    assert finding.fast.differs_in == finding.strict.differs_in == "forward"
    assert 1e-6 < finding.fast.largest_difference < 1e-5


def test_a_backward_pass_that_changes_is_seen() -> None:
    """Equal outputs with another gradient are told apart from other outputs."""
    count = itertools.count()

    finding = probed(lambda x: x.detach() + (x - x.detach()) * next(count), floats(10))

    assert finding.fast.differs_in == finding.strict.differs_in == "backward"


def test_seeded_randomness_comes_back() -> None:
    """Dropout repeats, because the generators are seeded before each run."""
    finding = probed(lambda x: torch.dropout(x, 0.5, True), floats(100))

    assert (finding.fast.differs_in, finding.strict.differs_in) == ("", "")


def test_randomness_that_is_not_seeded_does_not() -> None:
    """The negative control: a generator of its own, which nobody keys, is found out."""
    own = torch.Generator().manual_seed(0)

    finding = probed(lambda x: x + torch.rand(100, generator=own), floats(100))

    assert finding.strict.differs_in == "forward"


def test_a_refusal_is_reported_with_its_phase() -> None:
    """What raises under strict alone is a refusal, in the pass that raised."""

    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if torch.are_deterministic_algorithms_enabled():
                raise RuntimeError("no such order\nsecond line")
            return gradient

    finding = probed(Refusing.apply, floats(10))

    assert (finding.strict.raised_in, finding.strict.raised) == ("backward", "no such order")
    assert finding.fast.raised == finding.unavailable == ""
    assert finding.slowdown is None


def test_what_a_device_cannot_do_is_not_available() -> None:
    """What raises under fast too is reported as not available, with the reason."""

    def missing(x: Tensor) -> Tensor:
        raise NotImplementedError("no such kernel")

    finding = probed(missing, floats(10))

    assert finding.unavailable == "no such kernel"


def test_probing_leaves_the_flags_as_they_were() -> None:
    """Neither preset outlives the probe."""
    before = determinism.in_force()

    probed(lambda x: x, floats(10))

    assert determinism.in_force() == before


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        (bits(0x00000000), bits(-0x80000000), 0.0),  # zero and minus zero
        (bits(0x7FC00000), bits(0x7FC00001), 0.0),  # two NaNs
        (bits(0x7FC00000), bits(0x3F800000), math.inf),  # NaN and one
        (bits(0x3F800000), bits(0x3F800001), 2.0**-23),  # neighbours
        (torch.tensor([2**60]), torch.tensor([2**60 + 2**9]), 2.0**9),
        (torch.zeros(2), torch.zeros(3), math.inf),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), math.inf),
    ],
)
def test_every_bit_counts(a: Tensor, b: Tensor, difference: float) -> None:
    """Bits are compared, never values: signs of zero and NaN payloads too."""
    assert not same_bits(a, b)
    assert largest_difference(a, b) == difference


def test_equal_bits_are_equal() -> None:
    """The negative control: NaNs, complex numbers, no dimensions, no elements and any memory
    order."""
    for t in (bits(0x7FC00001), torch.tensor(1j), torch.tensor(True), torch.zeros(0, 3)):
        assert same_bits(t, t.clone())
        assert largest_difference(t, t.clone()) == 0.0
    image = torch.rand(2, 3, 4, 5)
    assert same_bits(image, image.contiguous(memory_format=torch.channels_last))


def test_the_slowdown_is_the_median_of_the_ratios_after_the_warm_up() -> None:
    """The first run, which warms up, does not count, and one hiccup does not either."""
    fast, strict = Trial(seconds=[9.0, 1.0, 2.0, 1.0]), Trial(seconds=[1.0, 1.0, 4.0, 100.0])

    assert Finding("x", "cpu", fast, strict).slowdown == (2.0, 1.0, 100.0)


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "probe_ops.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.long
def test_the_command_writes_its_tables(tmp_path: Path) -> None:
    """Terminal, CSV and Markdown say the same about the same operations."""
    files = ("--csv", str(tmp_path / "ops.csv"), "--markdown", str(tmp_path / "ops.md"))

    done = script("--only", "max_*pool2d", "--repeats", "1", *files)

    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^max_unpool2d +cpu +repeats +raises in forward", done.stdout, re.MULTILINE)
    rows = list(csv.DictReader((tmp_path / "ops.csv").open(newline="")))
    on_cpu = {row["operation"]: row for row in rows if row["device"] == "cpu"}
    assert set(on_cpu) == {"max_pool2d", "max_unpool2d"}
    assert "scatter" in on_cpu["max_unpool2d"]["instead"]
    assert float(on_cpu["max_pool2d"]["slowdown"]) > 0
    assert (
        "| max_unpool2d | cpu | repeats | raises in forward |" in (tmp_path / "ops.md").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "no_such"), "--only: expected an operation's name, got no_such"),
        (("--repeats", "0"), "--repeats: expected an integer >= 1, got 0"),
        (("model=cnn", "--only", "mm"), "model=cnn: expected overrides or options, got both"),
        (("--csv", "no/such/folder/ops.csv"), "ops.csv: expected a file that can be written"),
    ],
)
def test_bad_requests_get_one_line(arguments: tuple[str, ...], words: str) -> None:
    """Exit status 2, what was expected, and no traceback."""
    done = script(*arguments)

    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
