"""Statistics of the training samples: which samples, and the file that holds them."""

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset

import seedbed
from seedbed import launch, record, rng
from seedbed.assemble import statistics
from seedbed.datasets import SPLITS
from seedbed.errors import InputError
from seedbed.record import code, untrusted
from tests import tiny
from tests.running import command, refusal, trained, typed
from tests.tiny.data import Noisy

FILE = statistics.FILE


class Images(torch.utils.data.Dataset[Any]):
    """Images, of which training ones may be flipped and brightened."""

    def __init__(
        self, split: str, samples: int, transform: Any = None, **others: Any
    ) -> None:
        self.images = torch.from_numpy(
            rng.generator(rng.key(0, "data")).random((samples, 8))
        )
        self.split = split
        self.transform = transform
        self.others = others

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        return image if self.transform is None else self.transform(image), index % 3


class Noise:
    def __call__(self, image: Tensor) -> Tensor:
        return image + torch.randn_like(image)


class Doubled:
    def __call__(self, image: Tensor) -> Tensor:
        return 2 * image


def every_other(dataset: Any) -> Any:
    return Subset(dataset, range(0, len(dataset), 2))


def mean(dataset: Any) -> Mapping[str, Any]:
    values = torch.stack([dataset[index][0] for index in range(len(dataset))])
    return {"mean": values.mean(0), "count": len(dataset), "words": ("a", "b")}


def spec(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{__name__}.{name}", **arguments}


def fitted(seed: int = 0, **data: Any) -> Any:
    """Return the statistics of a data set, as a run with a seed has them."""
    given = {"statistics": spec("mean"), "dataset": None, **data}
    seeds = dict.fromkeys(
        ("init", "order", "augment", "dropout", "data", "split"), seed
    )
    settings = typed(data=given, seeds=seeds, seed=seed)
    return statistics.parse(statistics.fitted(settings))


SHARED = spec("Images", samples=40)
CLEAN = {"dataset": SHARED, "train": {}, "validation": {}, "test": {}}
WAYS: dict[str, dict[str, Any]] = {
    "added for training": {**CLEAN, "train": {"transform": spec("Noise")}},
    "of both splits": {
        "train": spec("Images", split="train", samples=40, transform=spec("Noise")),
        "validation": spec("Images", split="validation", samples=30, transform=None),
    },
    "of an inner data set": {
        "train": spec(
            "every_other",
            dataset=spec("Images", split="train", samples=80, transform=spec("Noise")),
        ),
        "validation": spec(
            "every_other", dataset=spec("Images", split="validation", samples=60)
        ),
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_they_are_of_samples_as_evaluation_sees_them(way: str) -> None:
    """So they are the same for all seeds, and of training samples alone.

    Negative control: without augmentation nothing changes; with another class, it
    stays.
    """
    found = [fitted(seed, **WAYS[way]) for seed in (0, 1)]
    assert found[0] == found[1]
    inner = every_other(Images("", 80)) if "inner" in way else Images("", 40)
    assert found[0]["mean"] == mean(inner)["mean"].tolist()
    assert found[0]["count"] == 40
    other = {
        **WAYS[way],
        "dataset": None,
        "validation": spec("every_other", dataset=SHARED),
    }
    if "both" in way:
        other["validation"]["dataset"] = {**SHARED, "split": "validation"}
        assert fitted(0, **other)["mean"] != fitted(1, **other)["mean"]


def test_transforms_of_evaluation_take_part() -> None:
    """Those that prepare every sample, such as a normalisation."""
    clean = fitted(**CLEAN)
    train = {"transform": spec("Noise")}
    doubled = {"transform": spec("Doubled")}
    for own in ({}, train):
        found = fitted(**{**CLEAN, "train": own, "validation": doubled})
        assert found["mean"] == [2 * value for value in clean["mean"]]


def test_an_argument_that_chooses_samples_is_asked_for() -> None:
    """It would be left out with the augmentation. Negative control: validation has one,
    too."""
    train = {"samples": 20}
    shared = spec("Images", samples=40)
    data = {**CLEAN, "dataset": {**shared, "samples": 40}, "train": train}
    assert fitted(**data)["count"] == 20
    shared.pop("samples")
    three = {
        "train": spec("Sized", split="train", samples=20),
        "validation": spec("Sized", split="validation"),
    }
    message = r"expected the 20 samples .* got 30 without data\.train\.samples"
    with pytest.raises(InputError, match=message):
        fitted(**three)
    three["validation"]["samples"] = 30
    assert fitted(**three)["count"] == 20


class Sized(Images):
    def __init__(self, split: str, samples: int = 30) -> None:
        super().__init__(split, samples)


VALUES: dict[str, Any] = {
    "numbers": [0.1, 1 / 3, 5e-324, -0.0, math.inf, 2**63],
    "single": np.float32(0.1).item(),
    "words": {f"word {n}": n for n in range(30_000)},
}


def of_values(dataset: Any) -> Mapping[str, Any]:
    return VALUES


def bad(dataset: Any, kind: str) -> Any:
    kinds = {"nan": {"a": math.nan}, "keys": {"a": [{1: 2}]}, "object": {"a": object()}}
    return {
        **kinds,
        "deep": {"a": json.loads("[" * 40 + "]" * 40)},
        "huge": {"a": 1 << 70},
    }[kind]


@pytest.mark.parametrize("kind", ["nan", "keys", "object", "deep", "huge"])
def test_what_a_record_cannot_hold_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match=rf"^(data\.statistics|{FILE}): expected"):
        fitted(**tiny.DATA, statistics=spec("bad", kind=kind))


class Given(Noisy):
    """Samples that know the statistics."""

    def __init__(self, samples: int, statistics: Any = None) -> None:
        super().__init__(samples)
        self.statistics = statistics


WORDS = (
    *tiny.OVERRIDES,
    *(f"data.{split}._target_={__name__}.Given" for split in SPLITS),
    *(f"+data.{split}.statistics=null" for split in SPLITS),
    f"+data.statistics._target_={__name__}.of_values",
    *("schedule=constant", "trainer.max_steps=2", "trainer.validate_every_steps=1"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("statistics") / "run", *WORDS)


def test_large_ones_are_a_file_and_read_to_the_last_bit(
    run: Path, tmp_path: Path
) -> None:
    """Every command reads the run. Negative control: the file of another run is
    refused."""
    digest = code.sha256((run / FILE).read_bytes())
    assert untrusted.read_json(run / "environment.json")["statistics_sha256"] == digest
    assert (run / "config.yaml").stat().st_size < 10_000
    given = seedbed.data(run, "test", trust=["tests"]).statistics
    assert repr(given) == repr(VALUES)
    for script in ("evaluate.py", "verify.py"):
        done = command(f"scripts/{script}", str(run), "--trust", "tests")
        assert done.returncode == 0, (done.stdout, done.stderr)
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / FILE).write_text('{"numbers": []}')
    line = refusal(command("scripts/evaluate.py", str(copy), "--trust", "tests"))
    assert line.startswith(f"{copy / FILE}: its SHA-256 is not the recorded one")
    done = command("scripts/verify.py", str(copy), "--trust", "tests")
    assert done.returncode == 1
    assert "statistics.json: other than in the replay" in done.stdout
    (copy / FILE).unlink()
    line = refusal(command("scripts/evaluate.py", str(copy), "--trust", "tests"))
    assert line.startswith("data.train.statistics: expected a run with statistics")


@pytest.mark.long
def test_an_exported_model_says_what_its_inputs_are_made_with(
    run: Path, quick_run: Path, tmp_path: Path
) -> None:
    """By the arguments that take it; values if they are short.

    Negative control: a run without statistics.
    """
    said = []
    for folder in (run, quick_run):
        out = tmp_path / f"{folder.parent.name}.pt"
        words = (str(folder), "--format", "torchscript", "--out", str(out))
        done = command("scripts/export.py", *words, "--trust", "tests")
        assert done.returncode == 0, done.stderr
        said.append(json.loads(out.with_name(f"{out.name}.json").read_text()))
    assert said[1]["statistics"] is None
    known = {
        "arguments": ["data.test.statistics"],
        "file": FILE,
        "sha256": code.sha256((run / FILE).read_bytes()),
        "values": None,
    }
    assert said[0]["statistics"] == known
    (tmp_path / FILE).write_text('{"mean": [1.5]}')
    split = {**SHARED, "statistics": None}
    settings = typed(data={"statistics": spec("mean"), "train": split, "test": split})
    short = statistics.of_inputs(settings, tmp_path, "test")
    assert short is not None
    assert short["values"] == {"mean": [1.5]}


def test_those_of_a_record_build_no_class(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They become arguments of data sets. Negative control: unchecked, the attack
    works."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    made = tmp_path / "made"
    attack = json.dumps(
        {"a": [{"_target_": "os.makedirs", "name": str(made), "exist_ok": True}]}
    )
    (copy / FILE).write_text(attack.replace("_target_", r"\u005ftarget_"))
    environment = untrusted.read_json(copy / "environment.json")
    changed = {"statistics_sha256": code.sha256((copy / FILE).read_bytes())}
    record.write_json(copy / "environment.json", environment | changed)
    with pytest.raises(InputError, match="got a _target_"):
        seedbed.data(copy, "test", trust=["tests"])
    assert not made.exists()
    monkeypatch.setattr(statistics, "_keys", lambda _: ())
    seedbed.data(copy, "test", trust=["tests"])
    assert made.exists()


def test_they_are_restored_with_the_run(run: Path, tmp_path: Path) -> None:
    """An edited or lost file stops the resume. Negative control: as it was, it is
    resumed."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    before = (copy / FILE).read_bytes()
    words = ("scripts/resume.py", str(copy), "trainer.max_steps=4")
    (copy / FILE).write_bytes(before.replace(b"0.1", b"0.2", 1))
    assert "statistics_sha256" in refusal(command(*words))
    (copy / FILE).unlink()
    assert "the file is missing" in refusal(command(*words))
    (copy / FILE).write_bytes(before)
    done = command(*words)
    assert done.returncode == 0, done.stderr


def test_a_configuration_that_could_not_be_read_is_refused_before_the_first_step(
    tmp_path: Path,
) -> None:
    """Negative control: a tenth of it is written, and read again."""
    few, many = (typed(data={"values": [*range(count)]}) for count in (2500, 25_000))
    with pytest.raises(
        InputError, match=r"^configuration: expected values .* got more than"
    ):
        launch.create_run_folder(tmp_path / "many", many)
    assert not (tmp_path / "many").exists()
    launch.create_run_folder(tmp_path / "few", few)
    assert untrusted.read_dict(tmp_path / "few")["data"]["values"] == [*range(2500)]
