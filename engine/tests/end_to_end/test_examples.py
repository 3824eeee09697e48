"""docs/examples: every example trains as shown there, and is reproducible."""

import csv
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import pages
from tests.running import TEMPLATE
from tests.ways import differences, require_same_bits

# files by path, overrides of each training
Example = tuple[dict[str, str], list[list[str]]]


def read() -> Iterator[tuple[str, Example]]:
    """Yield each section that has a training, with its name `page: heading`."""
    for page in sorted((TEMPLATE / "docs" / "examples").glob("*.md")):
        _, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
        for section in sections:
            heading, _, body = section.partition("\n")
            lines = "".join(pages.blocks(body, "sh")).splitlines()
            commands = [
                shlex.split(line)[2:]
                for line in lines
                if line.startswith("python train")
            ]
            if commands:
                yield f"{page.stem}: {heading}", (pages.files(body), commands)


EXAMPLES = dict(read())
# Makes changes that come late in a run come early enough for a short one.
SOONER = {"fine-tuning: Groups, freezing, a schedule": ["method.frozen_steps=2"]}
# Overrides that are dropped: sweeps, run folders and batch sizes are not tested here.
ELSEWHERE = ("--multirun", "hydra.", "data.ba")
# Refused with several shards (batch statistics) or processes (a closure over all
# shards).
ON_ONE_PROCESS = {"anything: LBFGS", "anything: torchvision"}
# on one process, each shard sees fewer
NEGATIVES = "self-supervised: Negatives of all processes"
# of the dependency group zoo
OF_OTHER_PACKAGES = ("anything: timm", "anything: transformers")
LARGE = ("anything: torch.compile and bfloat16", "anything: torchvision")  # take long
NAMES = [name for name in EXAMPLES if name not in OF_OTHER_PACKAGES + LARGE]
# Trains each command line in the copy in all ways, and in 2 shards on 1 and on 2
# processes.
PROGRAM = """
import json, sys
from pathlib import Path
from seedbed import launch, testing
from seedbed.config.compose import compose
if __name__ == "__main__":
    lines = [tuple(line) for line in json.load(sys.stdin)]
    for words, folder in testing.train_in_ways(lines, Path(sys.argv[1])).items():
        for count in (1, 2):
            changes = {"trainer.shards": 2, "trainer.processes": count}
            settings = testing.short(compose(*testing.SHORT, *words), changes)
            launch.start(settings, folder / f"{count}_processes")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the project with the files of all pages in it."""
    shown = {
        path: text for files, _ in EXAMPLES.values() for path, text in files.items()
    }
    root = pages.copy_project(
        tmp_path_factory.mktemp("examples"), shown | {"ways.py": PROGRAM}
    )
    write_files(root / "data")
    return root


def write_files(folder: Path) -> None:
    """Write what docs/examples/own-files.md reads: noise in folders, and a table."""
    draws = np.random.default_rng(0)
    for kind, trees in {"oak": 16, "elm": 10, "fir": 8}.items():
        (folder / "leaves" / kind).mkdir(parents=True)
        for number in range(2 * trees):
            image = Image.fromarray(draws.integers(0, 256, (40, 30, 3), np.uint8))
            image.save(folder / "leaves" / kind / f"tree{number // 2}_{number}.png")
    rows = [
        f"plant {n},{','.join(map(str, draws.normal(size=4)))},{n % 3}"
        for n in range(90)
    ]
    (folder / "table.csv").write_text(
        "plant,a,b,c,d,species\n" + "\n".join(rows) + "\n"
    )


def train(project: Path, names: Sequence[str]) -> dict[str, Path]:
    """Train examples; return the folder of each, with its runs."""
    lines = []
    for name in names:
        words = [
            word for word in EXAMPLES[name][1][-1] if not word.startswith(ELSEWHERE)
        ]
        words = [
            word.split(",")[0] if word.startswith("data.fold=") else word
            for word in words
        ]
        lines.append([*words, *SOONER.get(name, [])])
    place = project / "trained" / names[0].replace(" ", "-")
    pages.run(project, "ways.py", str(place), input=json.dumps(lines))
    return {name: place / str(number) for number, name in enumerate(names)}


@pytest.fixture(scope="module")
def runs(project: Path) -> dict[str, Path]:
    """Run the commands before the last one of each example; train those of NAMES."""
    for _, commands in EXAMPLES.values():
        for words in commands[:-1]:
            pages.run(
                project,
                "train.py",
                *words,
                "trainer.max_steps=5",
                "determinism.threads=1",
            )
    return train(project, NAMES)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) for name in (*NAMES, *LARGE)]
    + [pytest.param(name, marks=pytest.mark.zoo) for name in OF_OTHER_PACKAGES],
)
def test_same_bits(request: pytest.FixtureRequest, project: Path, name: str) -> None:
    """In all ways of training, and on 1 and 2 processes. Negative control: another
    seed."""
    trained = (
        request.getfixturevalue("runs") if name in NAMES else train(project, [name])
    )
    folder = trained[name]
    require_same_bits(folder)
    if name not in ON_ONE_PROCESS:
        found = differences(folder / "1_processes", folder / "2_processes")
        assert found[:1] == (["step 1: loss"] if name == NEGATIVES else [])


@pytest.mark.long
def test_parts_of_a_folder_have_other_trees_and_all_classes(
    runs: dict[str, Path], project: Path, tmp_path: Path
) -> None:
    """Predictions have file names and probabilities that sum to 1."""
    code = """
import json, re, sys, seedbed
trust = ["seedbed.testing.Few"]  # which few samples are taken by
splits = ("train", "validation", "test")
sets = {split: seedbed.data(sys.argv[1], split, trust=trust) for split in splits}
paths = {name: [path for path, _ in data.samples] for name, data in sets.items()}
print(json.dumps(paths))
"""
    run = runs["own-files: Images in one folder"] / "first"
    parts = json.loads(pages.run(project, "-c", code, str(run)).stdout.splitlines()[-1])
    trees = {
        split: {re.sub(r"_\d+\.png", "", path) for path in parts[split]}
        for split in parts
    }
    assert sum(map(len, trees.values())) == 34
    assert len(set.union(*trees.values())) == 34
    for split in parts:
        assert {Path(path).parent.name for path in parts[split]} == {
            "oak",
            "elm",
            "fir",
        }
    for name, key in (("Images in one folder", ".png"), ("A table", "plant ")):
        run = runs[f"own-files: {name}"] / "first"
        out = tmp_path / "out.csv"
        options = ("--trust", "seedbed.testing.Few", "--predictions", str(out))
        pages.run(project, "-m", "seedbed", "evaluate", str(run), *options)
        with out.open() as lines:
            rows = list(csv.DictReader(lines))
        assert rows
        for row in rows:
            assert key in row["name"]
            values = [float(row[f"probability_{n}"]) for n in range(3)]
            assert sum(values) == pytest.approx(1)
            assert values.index(max(values)) == int(row["prediction"])


@pytest.mark.long
def test_rows_without_targets_of_a_table_are_predicted(
    project: Path, tmp_path: Path
) -> None:
    """As the page says; all rows are, and those of the test set as in the test."""
    words = (
        "data=table",
        "model=dense",
        "trainer.max_steps=5",
        f"hydra.run.dir={tmp_path}/run",
    )
    pages.run(project, "train.py", *words)
    with (project / "data" / "table.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    with (tmp_path / "new.csv").open("w", newline="") as lines:
        writer = csv.DictWriter(lines, [name for name in rows[0] if name != "species"])
        writer.writeheader()
        writer.writerows(
            {k: x for k, x in row.items() if k != "species"} for row in rows
        )
    out = tmp_path / "predictions.csv"
    where = (f"data.dataset.file={tmp_path / 'new.csv'}", "data.dataset.whole=true")
    pages.run(
        project, "scripts/predict.py", str(tmp_path / "run"), *where, "--out", str(out)
    )
    with out.open() as lines:
        predicted = {row["name"]: row["prediction"] for row in csv.DictReader(lines)}
    assert len(predicted) == len(rows)
    with (tmp_path / "run" / "test_predictions.csv").open() as lines:
        tested = {row["name"]: row["prediction"] for row in csv.DictReader(lines)}
    assert predicted | tested == predicted
