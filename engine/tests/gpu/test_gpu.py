"""The three gates of a GPU, and tests for CUDA only.

SEEDBED_GPU_TESTS_DEVICE=cpu runs the gates without a GPU.
SEEDBED_GPU_TESTS_PROCESSES is the number of processes of the first gate (default 20).
"""

import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from seedbed import assemble, fingerprint, launch, testing
from seedbed.config import Settings
from seedbed.training import graphs
from tests import ways
from tests.end_to_end.live import begin, until
from tests.golden import runs
from tests.running import command
from tests.test_fingerprint import DTYPES as CPU_DTYPES
from tests.test_fingerprint_gpu import some_tensor

DEVICE = os.environ.get("SEEDBED_GPU_TESTS_DEVICE", "cuda")
PROCESSES = int(os.environ.get("SEEDBED_GPU_TESTS_PROCESSES", "20"))
AT_A_TIME = 4  # processes that share the GPU; none may disturb another
NO_GPU = torch.version.cuda is None or not torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and NO_GPU, reason="torch sees no NVIDIA GPU"),
]
EACH_MODEL = pytest.mark.parametrize("model", runs.EXPERIMENTS)
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
)
ALL_DTYPES = sorted({*DTYPES, *CPU_DTYPES}, key=str)
Undisturbed = dict[str, runs.FingerprintRows]


def in_same_layout(tensor: Tensor) -> Tensor:
    """Return a copy on the device with the same strides, as far as memory can have
    them."""
    # expanded: one element in many places
    if 0 in tensor.stride() or tensor.numel() == 0:
        return tensor.to(DEVICE)
    there = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE
    )
    return there.copy_(tensor)


def configuration(model: str, *overrides: str) -> Settings:
    """Return the configuration of 60 steps on the device, with dropout; later overrides
    win."""
    words = ("determinism=strict", f"trainer.device={DEVICE}", "trainer.max_steps=60")
    return runs.configuration(model, *words, "model.dropout=0.2", *overrides)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Train each model once under strict; return their fingerprints."""
    settings = {model: configuration(model) for model in runs.EXPERIMENTS}
    return runs.train(tmp_path_factory.mktemp("undisturbed"), settings)


class TestFixedEnvironment:
    @EACH_MODEL
    def test_fresh_processes_have_the_same_fingerprints(
        self, model: str, undisturbed: Undisturbed, tmp_path: Path
    ) -> None:
        """All processes have the same bits at every step."""
        settings = configuration(model)
        folders = [tmp_path / str(number) for number in range(PROCESSES)]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(lambda folder: testing.train([(folder, settings)]), folders))
        for rows in map(runs.fingerprint_rows, folders):
            assert len(rows) == 60
            assert rows == undisturbed[model]

    @EACH_MODEL
    def test_loader_workers_change_no_bit(
        self, model: str, undisturbed: Undisturbed, tmp_path: Path
    ) -> None:
        """Negative control: another dropout seed, used on the GPU, changes the first
        loss."""
        changes = {"workers": "data.num_workers=2", "dropout": "seeds.dropout=1"}
        settings = {
            name: configuration(model, change) for name, change in changes.items()
        }
        rows = runs.train(tmp_path, settings)
        assert rows["workers"] == undisturbed[model]
        redrawn = rows["dropout"][0]
        first = undisturbed[model][0]
        assert redrawn["batch"] == first["batch"]
        assert redrawn["loss"] != first["loss"]

    @EACH_MODEL
    def test_a_cuda_graph_changes_no_bit(
        self, model: str, undisturbed: Undisturbed, tmp_path: Path
    ) -> None:
        """Forward and backward passes are captured, or the run says why not."""
        settings = configuration(model, "trainer.cuda_graph=true")
        rows = runs.train(tmp_path, {"graph": settings})
        assert rows["graph"] == undisturbed[model]
        lines = (tmp_path / "graph/train.log").read_text().splitlines()
        (line,) = [line for line in lines if "trainer.cuda_graph: " in line]
        if DEVICE == "cpu":
            assert line.endswith(f"{graphs.EAGER}: the device is cpu")
        elif model == "cnn":
            assert "captured forward and backward passes" in line


class TestEquivalence:
    """Initial weights, batches and fingerprints have the same bits on CPU and GPU."""

    @pytest.mark.parametrize("preset", ["strict", "seeded"])
    @EACH_MODEL
    def test_initial_weights_are_those_of_the_cpu(
        self, model: str, preset: str
    ) -> None:
        """CUDA's generator would depend on the GPU. Negative control: another seed."""

        def initial_weights(device: str, *overrides: str) -> str:
            typed = configuration(model, *overrides)
            training = assemble.build_training_state(typed, torch.device(device))
            places = {p.device.type for p in training.model.parameters()}
            assert places == {torch.device(device).type}
            return fingerprint.text_of(training.model.parameters())

        on_gpu = initial_weights(DEVICE, f"determinism={preset}")
        assert on_gpu == initial_weights("cpu", "determinism=strict")
        assert on_gpu != initial_weights(
            DEVICE, f"determinism={preset}", "seeds.init=1"
        )

    @EACH_MODEL
    def test_order_and_batches_are_the_same(
        self, model: str, undisturbed: Undisturbed, tmp_path: Path
    ) -> None:
        """Under strict on the CPU and seeded on the GPU, too; kernels may differ."""
        changes = {"cpu": "trainer.device=cpu", "seeded": "determinism=seeded"}
        settings = {
            name: configuration(model, change) for name, change in changes.items()
        }
        for rows in runs.train(tmp_path, settings).values():
            for ours, strict in zip(rows, undisturbed[model], strict=True):
                assert ours["sample_ids"] == strict["sample_ids"]
                assert ours["batch"] == strict["batch"]

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("size", [1, 1000, 3_000_000])
    def test_equal_tensors_have_equal_fingerprints(
        self, dtype: torch.dtype, size: int
    ) -> None:
        """Only the bits count, not the device. Negative control: one element
        differs."""
        numbers = torch.randint(
            0, 2, (size,), generator=torch.Generator().manual_seed(0)
        )
        tensor = (numbers * 100).to(dtype)
        there = tensor.to(DEVICE, copy=True)
        assert int(fingerprint.of_tensors([there])) == int(
            fingerprint.of_tensors([tensor])
        )
        there[-1] = there[-1] == 0
        assert int(fingerprint.of_tensors([there])) != int(
            fingerprint.of_tensors([tensor])
        )


class TestRestartReplay:
    @EACH_MODEL
    def test_a_killed_and_resumed_run_has_the_same_bits(
        self, model: str, tmp_path: Path
    ) -> None:
        """SIGKILL after a checkpoint; the resumed run has the bits of an uninterrupted
        one."""
        settings = configuration(
            model, "trainer.max_steps=400", "trainer.checkpoint_every_steps=3"
        )
        runs.train(tmp_path, {"whole": settings})
        folder = tmp_path / "killed"
        launch.create_run_folder(folder, settings)
        _, *words = launch.training_command(folder)
        environment = launch.training_environment(settings)
        process = begin(*words, env=environment, stdout=subprocess.DEVNULL)
        until((folder / "checkpoints" / "last.pt").exists, process)
        process.kill()
        process.wait()
        assert 0 < len(runs.fingerprint_rows(folder)) < 400
        assert command("scripts/resume.py", str(folder)).returncode == 0
        assert ways.differences(tmp_path / "whole", folder) == []


@pytest.mark.skipif(DEVICE != "cuda", reason="only CUDA has it")
class TestCuda:
    def test_random_lists_have_the_hashes_of_the_cpu(self) -> None:
        """Tensors of all dtypes and layouts, with those strides on the GPU, and lists
        on both. Negative control: the lists differ from each other."""
        draw = random.Random(0)
        seen = set[tuple[int, ...]]()
        hasher = fingerprint.Hasher(torch.device(DEVICE))
        for _ in range(100):
            lists = [
                [
                    some_tensor(draw, draw.choice(ALL_DTYPES))
                    for _ in range(draw.randrange(6))
                ]
                for _ in range(draw.randrange(1, 6))
            ]
            hasher.add(
                *([in_same_layout(each) for each in tensors] for tensors in lists)
            )
            hasher.add(*lists)
            found = hasher.hashes().tolist()
            assert found == 2 * fingerprint.of_lists(lists).tolist()
            seen.add(tuple(found))
        assert len(seen) > 80, "negative control"

    def test_fingerprints_of_a_step_wait_for_nothing(self) -> None:
        """Hashing does not synchronize: lists on CPU and GPU, one too long for a single
        piece, in several steps. Negative control: `int()` does."""
        lists = [
            [torch.arange(64)],
            [torch.randn(3_000_000)],
            [],
            [torch.ones(5), torch.ones(7)],
        ]
        expected = fingerprint.of_lists(lists).tolist()
        there = [
            lists[0],
            *([tensor.to(DEVICE) for tensor in each] for each in lists[1:]),
        ]
        hasher = fingerprint.Hasher(torch.device(DEVICE))
        assert hasher._at_once is not None, "Triton computes them"

        def step() -> torch.Tensor:
            hasher.add(*there)
            return hasher.hashes()

        step()  # allocates the buffer
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = [step(), step()]
            with pytest.raises(RuntimeError, match="synchroniz"):
                int(found[0][0])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert [each.tolist() for each in found] == [expected, expected]
