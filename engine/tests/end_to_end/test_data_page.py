"""docs/data.md: its files and commands, taken out of the page itself, do what it says."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from seedbed import launch, record
from tests import pages
from tests.end_to_end.kill_anywhere import TABLES
from tests.running import ROOT

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs" / "data.md").read_text()
COMMANDS = [line for text in pages.blocks(PAGE, "sh") for line in text.strip().splitlines()]
CASES = (
    *("weighted_tones", "bucketed_tones", "easy_tones_first"),
    *("half_tones", "folded_tones", "streamed_tones"),
)
# Two epochs and a bit of small batches, stopped in the middle of the second.
SHORT = (
    *("determinism.threads=1", "trainer.max_steps=14", "trainer.log_every_steps=1"),
    *("model.hidden_size=4", "data.batch_size=16", "trainer.checkpoint_every_steps=0"),
)
FEW = ("data.train.samples=96", "data.validation.samples=32")
FOLDED = (*SHORT, "data.whole.samples=120")
OTHERWISE = {
    "bucketed_tones": ("data.sampler.batch_length=400",),
    "streamed_tones": ("data.samples_per_epoch=96", "data.streams=4", "data.train.samples=128"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the project with every file of the page in it."""
    return pages.copy_project(tmp_path_factory.mktemp("project"), pages.files(PAGE), "tests")


def words_of(case: str) -> list[str]:
    """Return the overrides of the page's command for a data set, made short."""
    (line,) = (line for line in COMMANDS if f"data={case} " in line)
    words = [word for word in shlex.split(line)[2:] if not word.startswith(("-m", "data.fold="))]
    short = FOLDED if case == "folded_tones" else (*SHORT, *FEW)
    return [*words, *short, *OTHERWISE.get(case, ())]


def run(project: Path, *words: str, stdin: str = "", status: int = 0, **environment: str) -> str:
    """Run Python in the copy; return what it printed."""
    done = pages.run(project, *words, stdin=stdin, **environment)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


# Creates run folders in the copy, and trains in each of them in one process.
CREATE = """
import sys
from pathlib import Path
from seedbed import launch
from seedbed.config import compose

for line in sys.stdin:
    folder, *words = line.split()
    launch.create_run_folder(Path(folder), compose.configuration(*words, folder=Path("configs")))
"""


def train(project: Path, place: Path, *overrides: str, stop_after: int | None = None) -> str:
    """Train every data set of the page into PLACE/NAME; return what the last process printed."""
    folders = {case: place / case for case in CASES}
    lines = [
        shlex.join([str(folders[case]), *words_of(case), *overrides, "trainer.device=cpu"])
        for case in CASES
    ]
    run(project, "-c", CREATE, stdin="\n".join(lines))
    names = "\n".join(map(str, folders.values()))
    environment = launch.training_environment(record.read_config(folders[CASES[0]]))
    if stop_after is not None:
        stop = ("--stop-after", str(stop_after))
        run(project, "-m", "tests.train_in_turn", *stop, stdin=names, **environment)
        assert {record.read_summary(each)["status"] for each in folders.values()} == {"interrupted"}
    return run(project, "-m", "tests.train_in_turn", stdin=names, **environment)


@pytest.fixture(scope="module")
def first(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train every data set of the page once."""
    place = tmp_path_factory.mktemp("first")
    train(project, place)
    return place


def differences(a: Path, b: Path) -> list[str]:
    for each in (a, b):
        assert record.read_summary(each)["error"] is None
    found = [name for name in TABLES if (a / name).read_bytes() != (b / name).read_bytes()]
    left, right = record.read_summary(a), record.read_summary(b)
    return found + [key for key in ("metrics", "fingerprints") if left[key] != right[key]]


def test_every_data_set_of_the_page_has_a_command() -> None:
    """None is forgotten here."""
    found = {word for line in COMMANDS for word in shlex.split(line) if word.startswith("data=")}
    assert found == {f"data={case}" for case in CASES}


def test_another_seed_gives_other_bits(project: Path, first: Path, tmp_path: Path) -> None:
    """Negative control: what is compared below can differ; samples are counted as they come."""
    train(project, tmp_path, "seed=1")
    for case in CASES:
        assert "fingerprints.csv" in differences(first / case, tmp_path / case)
    summary = record.read_summary(first / "bucketed_tones")
    taken = summary["samples_per_second"] * summary["seconds"]
    assert taken == pytest.approx(round(taken), abs=1e-6)
    assert taken != summary["steps"] * 16


def test_two_loader_workers_change_no_bit(project: Path, first: Path, tmp_path: Path) -> None:
    """Of any data set of the page."""
    train(project, tmp_path, "data.num_workers=2")
    for case in CASES:
        assert differences(first / case, tmp_path / case) == []


def test_a_stop_in_mid_epoch_changes_no_bit(project: Path, first: Path, tmp_path: Path) -> None:
    """Of any data set of the page; that a stream is read again is printed, with how much."""
    printed = train(project, tmp_path, stop_after=9)
    for case in CASES:
        assert differences(first / case, tmp_path / case) == []
    headers = [line for line in printed.splitlines() if "resuming after step" in line]
    assert len(headers) == len(CASES)
    step = int(headers[-1].rpartition(" ")[2].strip("()"))
    again = step % (96 // 16) * 16
    assert again > 0
    assert printed.count("before this step again") == 1, "the others have nothing to read again"
    assert f"data.train: reads the {again} samples before this step again" in printed


SHARDED: Mapping[str, tuple[str, ...]] = {
    "bucketed_tones": ("trainer.shards=4",),
    "weighted_tones": ("trainer.shards=2",),
    "streamed_tones": ("trainer.shards=2", "data.num_workers=2"),
}


@pytest.mark.parametrize("case", SHARDED)
def test_two_processes_give_the_bits_of_one(project: Path, tmp_path: Path, case: str) -> None:
    """Batches of different sizes, samples that come again, streams: cut into shards."""
    words = ["train.py", *words_of(case), *SHARDED[case]]
    for count in (1, 2):
        folder = f"hydra.run.dir={tmp_path / str(count)}"
        run(project, *words, folder, f"trainer.processes={count}")
    assert differences(tmp_path / "1", tmp_path / "2") == []


@pytest.mark.parametrize("case", ["bucketed_tones", "streamed_tones"])
def test_a_run_is_verified_and_traced(project: Path, tmp_path: Path, case: str) -> None:
    """verify.py reproduces it; compare.py --explain replays a step of it."""
    for name, more in (("a", ()), ("b", ("seeds.augment=1",))):
        words = (*words_of(case), *more, f"hydra.run.dir={tmp_path / name}")
        run(project, "train.py", *words)
    assert "REPRODUCED" in run(project, "scripts/verify.py", str(tmp_path / "a"))
    runs = (str(tmp_path / "a"), str(tmp_path / "b"))
    explained = run(project, "scripts/compare.py", *runs, "--explain", status=1)
    assert "diverge at step 1" in explained
    assert "seeds.augment" in explained


def test_a_sweep_over_folds_is_pooled(project: Path, tmp_path: Path) -> None:
    """The page's command: one group of five, whose held-out samples are the whole data set."""
    (line,) = (line for line in COMMANDS if "data.fold=" in line)
    words = [*shlex.split(line)[1:], *FOLDED, f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    assert "| 5 |" in run(project, *words)
    folders = [path.parent for path in (tmp_path / "sweep").glob("*/summary.json")]
    tested = [len((f / "test_predictions.csv").read_text().splitlines()) - 1 for f in folders]
    assert tested == [24] * 5
