"""docs/examples: every example trains as it stands there, and keeps what is promised."""

import hashlib
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import pytest
from omegaconf import DictConfig

from seedbed import launch, offline, record
from seedbed.config import compose
from tests import pages
from tests.end_to_end import example_pages
from tests.ways import Few, differences

EXAMPLES = example_pages.read()
STEPS, STOPPED_AFTER, BATCH = (
    5,
    3,
    16,
)  # two steps an epoch: validations lie before the stop and after it
SHORT = (
    "determinism=strict",
    "determinism.threads=1",
    "trainer.device=cpu",
    f"trainer.max_steps={STEPS}",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=0",
    f"data.batch_size={BATCH}",
    "data.eval_batch_size=16",
)
# What happens late in a run happens early in a short one.
SOONER = {"fine-tuning: Groups, freezing, a schedule": ("method.frozen_steps=2",)}
WAYS: dict[str, tuple[str, ...]] = {
    "first": ("data.num_workers=0",),
    "two_workers": ("data.num_workers=2",),
    "resumed": ("data.num_workers=0",),
}
OTHER_SEED = ("data.num_workers=0", "seed=1")
IN_TWO = ("data.num_workers=0", "trainer.shards=2")
# Where buffers change from batch to batch, statistics are of whole batches, or a closure repeats
# all shards: one process.
ON_ONE_PROCESS = {
    "self-supervised: MoCo",
    "self-supervised: VQ-VAE",
    "anything: LBFGS",
    "anything: torchvision",
}
# These need the dependency group zoo.
OF_OTHER_PACKAGES = (
    "metrics: F1 and AUROC by torchmetrics",
    "anything: timm",
    "anything: transformers",
)
# Networks that take long to train or to compile.
LARGE = (
    "anything: torch.compile and bfloat16",
    "anything: A backbone in evaluation mode",
    "anything: torchvision",
)
NAMES = [name for name in EXAMPLES if name not in OF_OTHER_PACKAGES + LARGE]


class Runs:
    """The examples in a copy of the project, trained in each way when it is asked for."""

    def __init__(self, root: Path) -> None:
        shown = {path: text for each in EXAMPLES.values() for path, text in each.files.items()}
        self.root = pages.copy_project(root / "project", shown)
        self.place = root / "runs"

    def folder(self, name: str, way: str) -> Path:
        return self.place / way / name.replace(": ", "/").replace(" ", "-")

    def settings(self, name: str, *overrides: str, command: int = -1) -> DictConfig:
        """Return the configuration of a short run on few samples."""
        words = [w for w in EXAMPLES[name].commands[command] if w != "--multirun"]
        words = [word.split(",")[0] if word.startswith("data.fold=") else word for word in words]
        words = [word for word in words if not word.startswith("hydra.")]
        words += [*SHORT, *(SOONER.get(name, ()) if command == -1 else ()), *overrides]
        settings = compose.configuration(*words, folder=self.root / "configs")
        if "streams" not in settings.data:
            for split, samples in (("train", 2 * BATCH), ("validation", 16), ("test", 16)):
                if settings.data.get(split):
                    few = {"_target_": f"{Few.__module__}.Few", "samples": samples}
                    settings.data[split] = {**few, "dataset": settings.data[split]}
        return settings

    def prepare(self, names: Sequence[str]) -> None:
        """Run the commands that come before the last one of an example."""
        for name in names:
            for number, words in enumerate(EXAMPLES[name].commands[:-1]):
                folder = next(w for w in words if w.startswith("hydra.run.dir=")).split("=")[1]
                launch.create_run_folder(self.root / folder, self.settings(name, command=number))
                self.in_turn([self.root / folder], "--keep-checkpoints")

    def train(self, names: Sequence[str], ways: Mapping[str, Sequence[str]]) -> None:
        """Train examples in ways; a process for each way, two at a time."""
        for way, overrides in ways.items():
            for name in names:
                launch.create_run_folder(self.folder(name, way), self.settings(name, *overrides))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda way: self._train_one_way(names, way), ways))

    def _train_one_way(self, names: Sequence[str], way: str) -> None:
        folders = [self.folder(name, way) for name in names]
        if way == "resumed":
            self.in_turn(folders, "--stop-after", str(STOPPED_AFTER))
            folders = [f for f in folders if record.read_summary(f)["status"] == "interrupted"]
        if folders:
            self.in_turn(folders)

    def in_turn(self, folders: Sequence[Path], *arguments: str) -> None:
        """Train in folders, one after another, in a process that has the preset's environment."""
        environment = launch.training_environment(record.read_config(folders[0]))
        done = self.run(
            "-m",
            "tests.train_in_turn",
            *arguments,
            environment=environment,
            text="\n".join(map(str, folders)),
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def run(
        self, *words: str, environment: Mapping[str, str] = MappingProxyType({}), text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy, offline."""
        return pages.run(self.root, *words, stdin=text, **environment, **{offline.VARIABLE: "1"})


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Make a copy of the project with the files of all pages in it."""
    return Runs(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def runs(untrained: Runs) -> Runs:
    """Train most of the examples in all ways."""
    untrained.prepare(NAMES)
    untrained.train(NAMES, WAYS)
    return untrained


@pytest.mark.long
@pytest.mark.parametrize("way", ["two_workers", "resumed"])
@pytest.mark.parametrize("name", NAMES)
def test_same_bits(runs: Runs, name: str, way: str) -> None:
    """With two loader workers, and stopped and resumed."""
    check(runs, name, way)


@pytest.mark.long
def test_a_file_of_weights_is_in_the_record(runs: Runs) -> None:
    """By its digest, which verify.py and a resume compare."""
    (name,) = (name for name in NAMES if name.startswith("fine-tuning"))
    file = Path("runs/pretrained/checkpoints/best.pt")
    recorded = record.read_json(runs.folder(name, "first") / "environment.json")["files_sha256"]
    assert recorded[str(file)] == hashlib.sha256((runs.root / file).read_bytes()).hexdigest()


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ON_ONE_PROCESS])
def test_two_processes_give_the_bits_of_one(runs: Runs, name: str) -> None:
    """With as many shards; one process works on both."""
    runs.train([name], {"in_two": IN_TWO})
    together = runs.folder(name, "on_two")
    settings = runs.settings(name, *IN_TWO, "trainer.processes=2")
    launch.create_run_folder(together, settings)
    command = launch.worker_command(settings, together)
    environment = launch.training_environment(settings)
    done = runs.run(*command[1:], environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert differences(runs.folder(name, "in_two"), together) == []


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_verify_reproduces_it(runs: Runs, name: str) -> None:
    """The real command, which replays the run in a process of its own."""
    folder = runs.folder(name, "first")
    done = runs.run("scripts/verify.py", str(folder), "--trust", Few.__module__)
    assert (done.returncode, "REPRODUCED" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) for name in LARGE]
    + [pytest.param(name, marks=pytest.mark.zoo) for name in OF_OTHER_PACKAGES],
)
def test_same_bits_of_large_networks_and_other_packages(untrained: Runs, name: str) -> None:
    """As above, each by itself."""
    untrained.train([name], WAYS)
    for way in ("two_workers", "resumed"):
        check(untrained, name, way)


@pytest.mark.long
def test_another_seed_gives_other_bits(runs: Runs) -> None:
    """Negative control: what is compared above can differ."""
    runs.train(NAMES, {"other_seed": OTHER_SEED})
    for name in NAMES:
        first, other = (runs.folder(name, way) for way in ("first", "other_seed"))
        assert differences(first, other), name


def check(runs: Runs, name: str, way: str) -> None:
    """Compare a run with the first one of its example."""
    first, other = runs.folder(name, "first"), runs.folder(name, way)
    assert differences(first, other) == []
    assert record.read_summary(first)["steps"] == STEPS
    assert bool(record.read_summary(other)["resumes"]) is (way == "resumed")
