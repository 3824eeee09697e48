"""On an NVIDIA GPU: strict repeats to the bit, and what the CPU decides stays as it is."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from seedbed import fingerprint, launch, record
from seedbed.training import capture, checkpoint
from seedbed.training.optimizer_tensors import optimizer_tensors
from seedbed.worker import assemble, experiment
from tests.golden import runs
from tests.running import ROOT

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.version.cuda is None or not torch.cuda.is_available(),
        reason="no NVIDIA GPU: torch.cuda.is_available() is False, or torch is built without CUDA",
    ),
]

STEPS = 60
PROCESSES = 20
AT_A_TIME = 4  # processes that share the GPU; none may disturb another
MODELS = list(runs.EXPERIMENTS)


def settings(model: str, *overrides: str) -> Any:
    """Return the resolved configuration of a short run on the GPU, with dropout."""
    words = ("determinism=strict", f"trainer.device={DEVICE}", f"trainer.max_steps={STEPS}")
    return runs.configuration(model, *words, "model.dropout=0.2", *overrides)


def prepared(folder: Path, model: str, *overrides: str) -> tuple[list[str], dict[str, str]]:
    """Make a run folder; return the command and the environment that train in it."""
    config = settings(model, *overrides)
    launch.create_run_folder(folder, config)
    return launch.worker_command(config, folder), launch.training_environment(config)


def fingerprint_rows(folder: Path, model: str, *overrides: str) -> runs.FingerprintRows:
    """Train in a process of its own; return the fingerprints."""
    command, environment = prepared(folder, model, *overrides)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = runs.fingerprint_rows(folder)
    assert len(rows) == STEPS
    return rows


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, runs.FingerprintRows]:
    """Train each model once under strict, as it comes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return {model: fingerprint_rows(folder / model, model) for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
def test_fresh_processes_have_the_same_fingerprints(
    model: str, undisturbed: dict[str, runs.FingerprintRows], tmp_path: Path
) -> None:
    """Under strict, 20 processes come to the same bits at every step."""
    folders = [tmp_path / str(number) for number in range(PROCESSES)]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        fingerprints = list(pool.map(lambda folder: fingerprint_rows(folder, model), folders))
    differing = [runs.first_difference(each, undisturbed[model]) for each in fingerprints]
    assert differing == [""] * PROCESSES


@pytest.mark.parametrize("model", MODELS)
def test_another_dropout_seed_is_another_fingerprints(
    model: str, undisturbed: dict[str, runs.FingerprintRows], tmp_path: Path
) -> None:
    """Twin: what the model draws on the GPU shows in the first loss."""
    other = fingerprint_rows(tmp_path, model, "seeds.dropout=1")
    assert runs.first_difference(other, undisturbed[model]) == "step 1, loss"


@pytest.mark.parametrize("model", MODELS)
def test_loader_workers_change_no_bit(
    model: str, undisturbed: dict[str, runs.FingerprintRows], tmp_path: Path
) -> None:
    """Two workers load what the training process would have loaded."""
    rows = fingerprint_rows(tmp_path, model, "data.num_workers=2")
    assert runs.first_difference(rows, undisturbed[model]) == ""


@pytest.mark.parametrize("model", MODELS)
def test_an_interrupted_and_resumed_run_changes_no_bit(model: str, tmp_path: Path) -> None:
    """A run that was stopped after a checkpoint ends as one that was not."""
    overrides = ("trainer.max_steps=400", "trainer.checkpoint_every_steps=3")
    command, environment = prepared(tmp_path / "whole", model, *overrides)
    subprocess.run(command, env=environment, capture_output=True, check=True)
    folder = tmp_path / "stopped"
    command, environment = prepared(folder, model, *overrides)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (folder / "checkpoints" / "last.pt").exists():
        time.sleep(0.005)
    process.terminate()
    assert process.wait() == 143
    assert 0 < len(runs.fingerprint_rows(folder)) < 400
    resume = [sys.executable, "scripts/resume.py", str(folder)]
    subprocess.run(resume, cwd=ROOT, capture_output=True, check=True)
    assert runs.first_difference(*map(runs.fingerprint_rows, (folder, tmp_path / "whole"))) == ""
    ends = [record.read_summary(run)["fingerprints"] for run in (folder, tmp_path / "whole")]
    assert ends[0] == ends[1]


def initial_weights(device: str, model: str, *overrides: str) -> str:
    plain: Any = OmegaConf.to_container(settings(model, *overrides))
    training = assemble.build_training_state(plain, torch.device(device))
    assert {p.device.type for p in training.model.parameters()} == {torch.device(device).type}
    return experiment.hash_of(training.model.parameters())


@pytest.mark.parametrize("preset", ["strict", "seeded"])
@pytest.mark.parametrize("model", MODELS)
def test_initial_weights_are_those_of_the_cpu(model: str, preset: str) -> None:
    """Weights are drawn on the CPU: CUDA's generator depends on the GPU."""
    on_gpu = initial_weights(DEVICE, model, f"determinism={preset}")
    assert on_gpu == initial_weights("cpu", model, "determinism=strict")
    # Twin: another seed gives others.
    assert on_gpu != initial_weights(DEVICE, model, f"determinism={preset}", "seeds.init=1")


@pytest.mark.parametrize("model", MODELS)
def test_seeded_shares_order_and_batches_with_strict(
    model: str, undisturbed: dict[str, runs.FingerprintRows], tmp_path: Path
) -> None:
    """The same samples, augmented alike, at every step; the kernels may part."""
    rows = fingerprint_rows(tmp_path, model, "determinism=seeded")
    for ours, strict in zip(rows, undisturbed[model], strict=True):
        assert ours["sample_ids"] == strict["sample_ids"]
        assert ours["batch"] == strict["batch"]


@pytest.mark.parametrize("model", MODELS)
def test_fast_repeats_too(model: str, tmp_path: Path) -> None:
    """Not promised: whether two runs under fast come to the same bits is seen, not required."""
    every_step = ("determinism=fast", "fingerprint.every_steps=1")
    first, second = (fingerprint_rows(tmp_path / name, model, *every_step) for name in "ab")
    if difference := runs.first_difference(first, second):
        pytest.xfail(f"fast promises nothing: {difference}")


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


def index_add() -> torch.Tensor:
    """Add a million numbers to ten places."""
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 10, (1_000_000,), generator=generator).to(DEVICE)
    values = torch.randn(1_000_000, generator=generator).to(DEVICE)
    return torch.zeros(10, device=DEVICE).index_add_(0, index, values)


def test_index_add_does_what_this_torch_says() -> None:
    """Articles show it raising; it repeats where the documentation lists it as deterministic."""
    text = torch.use_deterministic_algorithms.__doc__ or ""
    deterministic, _, raising = text.partition(":class:`RuntimeError` when ``mode=True``")
    torch.use_deterministic_algorithms(True)
    try:
        if "index_add" in raising:
            with pytest.raises(RuntimeError, match="deterministic"):
                index_add()
        else:
            assert "index_add" in deterministic
            sums = [index_add() for _ in range(20)]
            assert all(torch.equal(each, sums[0]) for each in sums)
        # Twin: an operation without a deterministic implementation raises.
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            torch.histc(torch.ones(9, device=DEVICE))
    finally:
        torch.use_deterministic_algorithms(False)


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
    state = {
        "format_version": record.FORMAT_VERSION,
        **capture.capture(model, {"optimizer": optimizer}),
    }
    checkpoint.save(state, tmp_path / "last.pt")
    saved = checkpoint.load(tmp_path / "last.pt", torch.device(DEVICE))
    capture.restore(other, {"optimizer": fresh}, saved)

    def places(optimizer: torch.optim.Optimizer) -> list[torch.device]:
        return [tensor.device for tensor in optimizer_tensors(optimizer)]

    assert places(fresh) == places(optimizer)
    assert other.seen.device == model.seen.device
