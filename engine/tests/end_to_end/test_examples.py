"""docs/examples: every example trains as it stands there, and keeps what is promised."""

import hashlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from seedbed import offline, record
from tests import pages
from tests.end_to_end import example_pages
from tests.ways import differences

EXAMPLES = example_pages.read()
# What happens late in a run happens early in a short one.
SOONER = {"fine-tuning: Groups, freezing, a schedule": ["method.frozen_steps=2"]}
# Where statistics are of whole batches, or a closure repeats all shards.
ON_ONE_PROCESS = {"anything: LBFGS", "anything: torchvision"}
# These need the dependency group zoo.
OF_OTHER_PACKAGES = (
    "anything: timm",
    "anything: transformers",
)
# Networks that take long to train or to compile.
LARGE = (
    "anything: torch.compile and bfloat16",
    "anything: torchvision",
)
NAMES = [name for name in EXAMPLES if name not in OF_OTHER_PACKAGES + LARGE]
# Trains command lines in the copy, each in all ways, and in as many processes; see seedbed.testing.
PROGRAM = """
import json, sys
from pathlib import Path
from seedbed import launch, testing
from seedbed.config.compose import compose
if __name__ == "__main__":
    place, ways, lines = Path(sys.argv[1]), sys.argv[2:], json.load(sys.stdin)
    if not ways:
        found = testing.train_in_ways(map(tuple, lines), place).values()
        sys.exit("; ".join(str(each) for each in found if not isinstance(each, Path)) or None)
    for way in ways:
        changes = {"trainer.shards": 2, "trainer.processes": int(way)}
        launch.start(testing.short(compose(*testing.SHORT, *lines[0]), changes), place / way)
"""


class Runs:
    """The examples in a copy of the project, trained when it is asked for."""

    def __init__(self, root: Path) -> None:
        shown = {path: text for each in EXAMPLES.values() for path, text in each.files.items()}
        self.root = pages.copy_project(root / "project", shown | {"ways.py": PROGRAM})
        self.place = root / "runs"
        self.folders: dict[str, Path] = {}

    def train(self, names: Sequence[str], *processes: str) -> list[Path]:
        """Train examples in all ways, or one in 2 shards on some numbers of processes.

        Returns:
            The folder of each, with the runs by way or by number.
        """
        place = self.place / str(len(list(self.place.glob("*"))))
        lines = [self.words(name) for name in names]
        done = self.run("ways.py", str(place), *processes, stdin=json.dumps(lines))
        assert done.returncode == 0, done.stdout + done.stderr
        return [place] if processes else [place / str(number) for number in range(len(names))]

    @staticmethod
    def words(name: str) -> list[str]:
        """Return the overrides of an example that do not say how long it trains, or where."""
        words = EXAMPLES[name].commands[-1]
        words = [word for word in words if not word.startswith(("--multirun", "hydra.", "data.ba"))]
        words = [word.split(",")[0] if word.startswith("data.fold=") else word for word in words]
        return [*words, *SOONER.get(name, [])]

    def run(self, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """Run Python in the copy, offline."""
        return pages.run(self.root, *words, stdin=stdin, **{offline.VARIABLE: "1"})


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Make a copy of the project with the files of all pages in it."""
    return Runs(tmp_path_factory.mktemp("examples"))


@pytest.fixture(scope="module")
def runs(untrained: Runs) -> Runs:
    """Run what comes before the last command of an example; train most of them in all ways."""
    short = ("trainer.max_steps=5", "determinism.threads=1")
    for example in EXAMPLES.values():
        for words in example.commands[:-1]:
            done = untrained.run("train.py", *words, *short)
            assert done.returncode == 0, done.stdout + done.stderr
    untrained.folders = dict(zip(NAMES, untrained.train(NAMES), strict=True))
    return untrained


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_same_bits(runs: Runs, name: str) -> None:
    """Again, with two loader workers, and stopped and resumed; not with another seed."""
    check(runs.folders[name])


@pytest.mark.long
def test_a_file_of_weights_is_in_the_record(runs: Runs) -> None:
    """By its digest, which verify.py and a resume compare."""
    (name,) = (name for name in NAMES if name.startswith("fine-tuning"))
    file = Path("runs/pretrained/checkpoints/best.pt")
    environment = record.read_json(runs.folders[name] / "first" / "environment.json")
    digest = hashlib.sha256((runs.root / file).read_bytes()).hexdigest()
    assert environment["files_sha256"][str(file)] == digest


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ON_ONE_PROCESS])
def test_two_processes_give_the_bits_of_one(runs: Runs, name: str) -> None:
    """With as many shards; one process works on both."""
    [place] = runs.train([name], "1", "2")
    assert differences(place / "1", place / "2") == []


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_verify_reproduces_it(runs: Runs, name: str) -> None:
    """The real command, which replays the run in a process of its own."""
    folder = runs.folders[name] / "first"
    done = runs.run("scripts/verify.py", str(folder), "--trust", "seedbed.testing")
    assert (done.returncode, "REPRODUCED" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) for name in LARGE]
    + [pytest.param(name, marks=pytest.mark.zoo) for name in OF_OTHER_PACKAGES],
)
def test_same_bits_of_large_networks_and_other_packages(untrained: Runs, name: str) -> None:
    """As above, each by itself."""
    check(*untrained.train([name]))


def check(folder: Path) -> None:
    """Compare the runs of an example with the first; negative control: another seed differs."""
    for way in ("again", "two_workers", "resumed"):
        assert differences(folder / "first", folder / way) == [], way
        assert bool(record.read_summary(folder / way)["resumes"]) is (way == "resumed")
    assert differences(folder / "first", folder / "other_seed") != []
