"""docs/extending.md: its files and commands, taken out of the page itself, do what it says."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from seedbed import fingerprint, record, rng
from seedbed.config import build, compose
from seedbed.config.request import Request
from seedbed.data.part import Part
from seedbed.data.positions import training_positions
from seedbed.data.source import Source
from seedbed.data.tensors import tensors_of
from seedbed.data.workers import Loading, load
from seedbed.errors import InputError
from seedbed.signals import Stop
from seedbed.worker import assemble, experiment
from seedbed.worker.job import Alone, Job
from seedbed.worker.summary import Summary
from tests import pages
from tests.running import ROOT, refusal

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs" / "extending.md").read_text()
COMMANDS = [text.splitlines() for text in pages.blocks(PAGE, "sh")]
# In an order of its own, each once: what the commands of the page are about.
ABOUT = [
    "waves",
    "new_waves",
    "fast_waves",
    "fashion",
    "sign_sgd",
    "uneven",
    "mixed",
    "focal",
    "unpool",
    "probe",
    "lines",
]
PRESET = {"on_nondeterministic": "allow", "fill_uninitialized_memory": False}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the project with every file of the page in it."""
    return pages.copy_project(tmp_path_factory.mktemp("project"), pages.files(PAGE))


def commands(about: str) -> list[str]:
    """Return the one block of commands that is about something."""
    return COMMANDS[ABOUT.index(about)]


def run(project: Path, line: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the page in the copy, with one thread because tests share the machine."""
    words = shlex.split(line)
    assert words[0] == "python"
    if words[1] != "scripts/compare.py":
        words += ["determinism.threads=1", *overrides]
    return pages.run(project, *words[1:])


def run_experiment(project: Path, about: str, folder: Path, *overrides: str) -> dict[str, Any]:
    """Do here what a command of the page does in a process of its own; return its summary."""
    (line,) = commands(about)
    words = [*shlex.split(line)[2:], "trainer.max_steps=5", *overrides]
    settings = compose.configuration(*words, folder=project / "configs")
    folder.mkdir()
    job = Job(folder, settings, Request(), Stop(), Alone())
    summary = Summary(job)
    experiment.run_experiment(job, summary, {"commit": None}, b"")
    return summary.values


@pytest.fixture
def user_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import the copy's package here; one thread is all that is set of the preset."""
    ours = {name: sys.modules.pop(name) for name in modules_of_the_project()}
    monkeypatch.syspath_prepend(project / "src")
    monkeypatch.setattr(assemble, "prepare_backends", lambda preset: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for name in modules_of_the_project():
        del sys.modules[name]
    sys.modules.update(ours)


def modules_of_the_project() -> list[str]:
    """Name the modules of the project's package that are imported, of whichever copy."""
    return [name for name in sys.modules if name.partition(".")[0] == "project"]


def test_the_page_has_the_commands_that_are_tested() -> None:
    """No block of commands is forgotten here."""
    assert len(COMMANDS) == len(ABOUT)
    for about, lines in zip(ABOUT, COMMANDS, strict=True):
        assert about in "\n".join(lines)


def test_the_example_gives_the_same_bits_with_workers(project: Path) -> None:
    """A user's data set and model train, and two loader workers change no bit."""
    *train, compare = commands("waves")
    for line in train:
        done = run(project, line)
        assert done.returncode == 0, done.stderr
    same = run(project, compare)
    assert (same.returncode, "The same bits" in same.stdout) == (0, True), same.stdout + same.stderr
    accuracy = record.read_summary(project / "runs/waves")["metrics"]["validation_accuracy"]
    assert accuracy > 0.6, "it learns: a guess is right once in three"

    table = project / "runs/waves_2/fingerprints.csv"
    table.write_text(table.read_text().replace("\n3,", "\n3,0123456789abcdef", 1))
    control = run(project, compare)
    assert (control.returncode, "diverge at step 3:" in control.stdout) == (1, True)


@pytest.mark.usefixtures("user_code")
@pytest.mark.parametrize("about", ["new_waves", "fast_waves", "sign_sgd", "uneven", "focal"])
def test_every_variation_of_the_page_trains(project: Path, tmp_path: Path, about: str) -> None:
    """Generator, fetch, optimizer, collate function and loss of one's own work as shown."""
    first = run_experiment(project, about, tmp_path / "first")
    assert first["steps"] == 5
    again = run_experiment(project, about, tmp_path / "again")
    assert first["fingerprints"] == again["fingerprints"]
    control = run_experiment(project, about, tmp_path / "negative control", "seed=1")
    assert first["fingerprints"]["all_steps"] != control["fingerprints"]["all_steps"]


@pytest.mark.usefixtures("user_code")
def test_the_logger_of_the_page_is_told_what_the_record_holds(
    project: Path, tmp_path: Path
) -> None:
    """A logger of one's own gets each row of metrics.csv."""
    run_experiment(project, "lines", tmp_path / "run", "trainer.log_every_steps=1")
    told = [json.loads(line) for line in (tmp_path / "run/lines.jsonl").read_text().splitlines()]
    rows = record.read_metrics(tmp_path / "run")
    assert len(rows) == 6  # five steps and a validation
    assert [line["step"] for line in told] == [int(row["step"]) for row in rows]
    for line, row in zip(told, rows, strict=True):
        assert line[f"{row['phase']}/loss"] == float(row["loss"])


@pytest.mark.usefixtures("user_code")
@pytest.mark.parametrize("about", ["fashion", "mixed"])
def test_a_torchvision_data_set_needs_yaml_alone(project: Path, tmp_path: Path, about: str) -> None:
    """FashionMNIST trains from its YAML, with MixUp and CutMix too; the raw files are made up."""
    raw = tmp_path / "data/FashionMNIST/raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0)
    for name, count in (("train", 60), ("t10k", 20)):
        pixels = images.integers(0, 256, (count, 28, 28), dtype=np.uint8).tobytes()
        header = b"".join(n.to_bytes(4, "big") for n in (0x803, count, 28, 28))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + pixels)
        labels = bytes(i % 10 for i in range(count))
        header = b"".join(n.to_bytes(4, "big") for n in (0x801, count))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(header + labels)
    few = [f"data.{part}.validation_samples=20" for part in ("train", "validation")]
    few += ["data.batch_size=20", f"data.root={tmp_path / 'data'}"]
    ways = {"two": [], "none": ["data.num_workers=0"], "seed": ["seed=1"]}
    fingerprint_rows = {
        name: run_experiment(project, about, tmp_path / name, *few, *way)["fingerprints"][
            "all_steps"
        ]
        for name, way in ways.items()
    }
    assert fingerprint_rows["two"] == fingerprint_rows["none"]
    assert fingerprint_rows["two"] != fingerprint_rows["seed"]


def test_strict_refuses_with_the_line_that_the_page_shows(project: Path) -> None:
    """Operation, place and substitute are those of the page."""
    (line,) = commands("unpool")
    shown = pages.blocks(PAGE, "text")[0]
    refused = refusal(run(project, line, "hydra.run.dir=runs/unpool"))
    assert f"error: {refused}\n" == shown.replace("src/project", f"{project}/src/project")


def test_the_probe_finds_nothing_in_the_example_and_the_refusal_in_the_other(project: Path) -> None:
    """What strict refuses, and randomness that no stream keys, can be known beforehand."""
    (line,) = commands("probe")
    assert run(project, line).returncode == 0
    control = run(project, f"{line} model._target_=project.models.unpool.SparseModel")
    assert (control.returncode, "max_unpool2d" in control.stdout) == (1, True)


def hashes(dataset: Any, workers: int, collate: Any = None, seeded: bool = True) -> list[int]:
    source = Source(dataset, "train", 0, collate, seeded)
    positions = training_positions(30, 5, 0, 0, 8)
    batches = load(source, positions, Loading(workers), PRESET)
    return [int(fingerprint.of_tensors(tensors_of(batch))) for batch in batches]


@pytest.mark.usefixtures("user_code")
@pytest.mark.parametrize("name", ["waves", "new_waves", "fast_waves", "uneven_waves"])
def test_the_data_sets_of_the_page_load_alike_with_workers(name: str) -> None:
    """Whatever they draw from belongs to the sample; unseeded, the plain one differs."""
    class_name = "".join(part.capitalize() for part in name.split("_"))
    extra = {"seed": 0} if name == "fast_waves" else {}
    spec = {"_target_": f"project.data.{name}.{class_name}", "samples": 30, "length": 16, **extra}
    dataset = build.build(spec, "data.train")
    collate = None
    if name == "uneven_waves":
        collate = build.resolve("project.data.uneven_waves.pad", "data.collate")
    here = hashes(dataset, 0, collate)
    assert len(set(here)) == 8
    assert hashes(dataset, 2, collate) == here
    if name == "waves":
        assert hashes(dataset, 0, seeded=False) != hashes(dataset, 0, seeded=False)


class Draws(Dataset[Any]):
    """A data set that draws when it is built, as data sets that split at random do."""

    def __init__(self, samples: int) -> None:
        self.numbers = np.random.rand(samples)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[float, int]:
        return self.numbers[index], 0


class Global(Draws):
    """A data set whose `fetch` draws from a global generator, against the page's advice."""

    def fetch(self, ids: Any, draws: rng.Draws | None) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(len(ids)), torch.zeros(len(ids))


class Endless(torch.utils.data.IterableDataset[Any]):
    """Not a map-style data set."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def settings(target: type, data_seed: int = 0, seeding: bool = True) -> dict[str, Any]:
    spec = {"_target_": f"{__name__}.{target.__name__}"}
    spec |= {"samples": 30} if issubclass(target, Draws) else {}
    return {
        "data": {"train": spec, "validation": spec, "test": None, "batch_size": 2},
        "seeds": {"augment": 0, "data": data_seed},
        "determinism": {"seeding": seeding},
    }


def built(target: type, **chosen: Any) -> tuple[list[float], list[float]]:
    sources = assemble.build_sources(settings(target, **chosen))
    return list(sources.train.dataset.numbers), list(sources.validation.dataset.numbers)


def test_a_data_set_may_draw_when_it_is_built() -> None:
    """Its draws depend on the data stream's seed and the split; without seeding on chance."""
    train, validation = built(Draws)
    assert built(Draws) == (train, validation)
    assert train != validation
    assert built(Draws, data_seed=1)[0] != train
    assert built(Draws, seeding=False) != built(Draws, seeding=False)


def test_what_fetch_draws_from_global_generators_is_seeded_for_the_batch() -> None:
    """Workers change nothing even for a data set that does not draw from its key."""
    assert hashes(Global(30), 2) == hashes(Global(30), 0)
    assert hashes(Global(30), 0, seeded=False) != hashes(Global(30), 0, seeded=False)


def test_a_data_set_without_a_length_is_refused() -> None:
    """Sample ids need a length."""
    with pytest.raises(InputError, match=r"data\.train: expected a map-style data set.*Endless"):
        assemble.build_sources(settings(Endless))


class TestPart:
    def ids(self, part: str, seed: int = 0, validation_samples: int = 10) -> set[int]:
        whole = torch.utils.data.TensorDataset(torch.arange(40))
        chosen = Part(whole, part, validation_samples, seed)
        return {int(chosen[i][0]) for i in range(len(chosen))}

    def test_parts_share_no_sample_and_leave_none_out(self) -> None:
        """Training and validation samples are the whole data set, each once."""
        train, validation = self.ids("train"), self.ids("validation")
        assert (len(train), len(validation)) == (30, 10)
        assert train | validation == set(range(40))

    def test_the_split_depends_on_its_seed(self) -> None:
        """Twin: another seed is another split, the same seed the same."""
        assert self.ids("train") == self.ids("train")
        assert self.ids("train") != self.ids("train", seed=1)

    @pytest.mark.parametrize("samples", [0, 40, -1, 2.5])
    def test_an_empty_part_is_refused(self, samples: int) -> None:
        """Some samples are for validation, and some are left."""
        with pytest.raises(InputError, match="expected validation_samples from 1 to 39"):
            self.ids("train", validation_samples=samples)

    def test_an_unknown_part_is_refused(self) -> None:
        """There is no test part: that would be a test set out of the training set."""
        with pytest.raises(InputError, match="expected part train or validation, got test"):
            self.ids("test")
