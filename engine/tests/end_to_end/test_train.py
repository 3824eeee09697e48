"""The headline: the same record in, the same bits out, from the shell."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seedbed import record
from seedbed.training import checkpoint
from tests.running import QUICK, ROOT, trained

TABLES = ("metrics.csv", "fingerprints.csv", "test_predictions.csv")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder / "checkpoints" / "last.pt")["model"]  # type: ignore[no-any-return]


def same_bits(a: Path, b: Path) -> bool:
    tables = all((a / name).read_bytes() == (b / name).read_bytes() for name in TABLES)
    left, right = weights(a), weights(b)
    tensors = all(torch.equal(left[k].view(torch.int32), right[k].view(torch.int32)) for k in left)
    prints = record.read_summary(a)["fingerprints"] == record.read_summary(b)["fingerprints"]
    assert tables == tensors == prints, "the record disagrees with itself"
    return tables


@pytest.fixture
def run(quick_run: Path) -> Path:
    """Return a run with the seed of the configuration, which is 0."""
    return quick_run


def test_seed_0_twice_gives_the_same_bits(run: Path, tmp_path: Path) -> None:
    """seed=0 is a seed like any other: two runs agree in every loss, weight and prediction."""
    assert same_bits(run, trained(tmp_path / "again", "seed=0"))


def test_another_seed_gives_other_bits(run: Path, tmp_path: Path) -> None:
    """Twin: the comparison can fail."""
    assert not same_bits(run, trained(tmp_path / "other", "seed=1"))


@pytest.mark.long
@pytest.mark.parametrize("experiment", ["adding_lstm", "adding_rnn"])
def test_recurrent_experiments_repeat(experiment: str, tmp_path: Path) -> None:
    """The promise holds for the RNN and the LSTM."""
    runs = [trained(tmp_path / name, f"experiment={experiment}") for name in ("a", "b")]
    assert same_bits(*runs)


@pytest.mark.long
def test_seeds_of_streams_can_be_set_alone(run: Path, tmp_path: Path) -> None:
    """Another seed for the order changes the order, and not the initial weights."""
    other = trained(tmp_path / "order", "seed=0", "seeds.order=5")
    before, after = record.read_fingerprints(run)[0], record.read_fingerprints(other)[0]
    assert before["sample_ids"] != after["sample_ids"]
    initial = trained(tmp_path / "init", "seed=0", "seeds.init=5")
    first = record.read_fingerprints(initial)[0]
    assert first["sample_ids"] == before["sample_ids"]
    assert first["batch"] == before["batch"]
    assert first["loss"] != before["loss"]


def test_the_record_is_complete(run: Path) -> None:
    """A finished run leaves every file that is promised."""
    names = {path.name for path in run.iterdir()}
    assert names >= {
        "config.yaml", "environment.json", "code.zip", "source.patch", "metrics.csv",
        "fingerprints.csv", "loss_curve.png", "checkpoints", "summary.json", "train.log",
        "test_predictions.csv",
    }  # fmt: skip
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"last.pt", "best.pt"}
    environment = json.loads((run / "environment.json").read_text())
    assert environment["flags"]["on_nondeterministic"] == "error"
    assert environment["env"]["PYTHONHASHSEED"] == "0"
    assert len(environment["git"]["commit"]) == 40
    assert len(next(iter(environment["data_sha256"].values()))) == 64
    summary = record.read_summary(run)
    assert summary["status"] == "finished"
    assert summary["steps"] == 12
    assert summary["metrics"]["test_accuracy"] == float(record.read_metrics(run)[-1]["accuracy"])


def test_losses_are_written_with_all_their_bits(run: Path) -> None:
    """A float32 loss read back from the table is the float32 that was computed."""
    losses = [row["loss"] for row in record.read_metrics(run) if row["phase"] == "train"]
    assert len(losses) == 12
    for text in losses:
        assert repr(float(torch.tensor(float(text), dtype=torch.float32))) == text


def test_a_checkpoint_opens_without_seedbed(run: Path) -> None:
    """People load weights with plain torch."""
    state = torch.load(run / "checkpoints" / "best.pt", weights_only=True)
    assert set(state["model"]) == set(weights(run))


@pytest.mark.long
def test_the_same_command_on_a_copied_file_is_the_same_run(run: Path, tmp_path: Path) -> None:
    """The configuration in the record is the training process's only input."""
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    environment = json.loads((run / "environment.json").read_text())["env"]
    subprocess.run(
        [sys.executable, "-m", "seedbed.worker", str(tmp_path)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), **environment},
        check=True,
        capture_output=True,
    )
    assert same_bits(run, tmp_path)


@pytest.mark.long
def test_a_null_seed_is_drawn_and_recorded(tmp_path: Path) -> None:
    """What was drawn can be used again."""
    run = trained(tmp_path / "drawn", "seed=null", "trainer.max_steps=2")
    seed = record.read_summary(run)["seed"]
    assert record.read_config(run).seed == seed
    again = trained(tmp_path / "again", f"seed={seed}", "trainer.max_steps=2")
    assert same_bits(run, again)


@pytest.mark.long
def test_two_runs_in_the_same_instant_have_folders_of_their_own(tmp_path: Path) -> None:
    """Names carry a unique part."""
    words = [sys.executable, str(ROOT / "train.py"), *QUICK, "trainer.max_steps=1"]
    jobs = [subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [job.wait() for job in jobs] == [0, 0, 0]
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 3
    assert all("seed=0" in folder.name for folder in folders)


def test_one_folder_is_never_given_to_two_runs(tmp_path: Path) -> None:
    """Of two runs that want one folder in the same instant, one is refused."""
    words = [sys.executable, "train.py", *QUICK, "trainer.max_steps=1"]
    words.append(f"hydra.run.dir={tmp_path / 'wanted'}")
    jobs = [
        subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    messages = [job.communicate()[1].decode() for job in jobs]
    assert sorted(job.returncode for job in jobs) == [0, 2]
    assert sorted(len(message.strip().splitlines()) for message in messages) == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize("preset", ["seeded", "fast"])
def test_other_presets_start_from_the_same_weights_and_order(
    run: Path, tmp_path: Path, preset: str
) -> None:
    """`seeded` promises weights, order and augmentation; `fast` uses the seed all the same."""
    other = trained(
        tmp_path / preset, f"determinism={preset}", "fingerprint.every_steps=1", "seed=0"
    )
    before, after = record.read_fingerprints(run)[0], record.read_fingerprints(other)[0]
    assert before["sample_ids"] == after["sample_ids"]
    if preset == "seeded":
        assert before["batch"] == after["batch"]


@pytest.mark.long
@pytest.mark.processor
def test_bfloat16_repeats(tmp_path: Path) -> None:
    """The other precision keeps the promise too, and is another computation."""
    runs = [trained(tmp_path / name, "trainer.precision=bfloat16") for name in "ab"]
    assert same_bits(*runs)
