"""Before the first step: splits that repeat each other, and samples that are also in
training."""

import itertools
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, random_split
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from seedbed import record, rng
from seedbed.assemble import overlap, sources
from seedbed.config import Settings
from seedbed.datasets import SPLITS
from seedbed.errors import InputError
from seedbed.pipeline.source import Source
from seedbed.sweeps import differences
from tests import tiny
from tests.run.runs import SHORT, StopAt, begun, refused, trained, work
from tests.running import typed
from tests.tiny import CLASSES, FEATURES

pytestmark = pytest.mark.usefixtures("this_process_trains")

NOT_COMPARED = "warning: data: samples of different splits could not all be compared:"
S = "seconds"


class Drawn(TensorDataset):
    """Points and classes that the constructor draws, of its split only if it knows the
    split."""

    def __init__(self, samples: int, split: str | None = None) -> None:
        numbers = rng.generator(
            rng.key(0, "data", SPLITS.index(split)) if split else None
        )
        points = numbers.standard_normal((samples, FEATURES), np.float32)
        super().__init__(torch.from_numpy(points), torch.arange(samples) % CLASSES)


class Normal(TensorDataset):
    """As `Drawn`, by PyTorch, whose last numbers depend on how many are drawn."""

    def __init__(self, samples: int) -> None:
        super().__init__(torch.randn(samples, 2), torch.arange(samples) % CLASSES)


class Fetched:
    """Samples that are drawn in the constructor and loaded by the batch, augmented in
    training."""

    def __init__(self, samples: int, first: int = 0) -> None:
        self.points = torch.from_numpy(np.random.RandomState(0).rand(200, FEATURES))[
            first:
        ]
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def fetch(self, ids: Any, draws: rng.Draws | None) -> tuple[Tensor, Tensor]:
        points = self.points[torch.from_numpy(ids)]
        drawn = torch.zeros(len(ids), FEATURES)
        if draws is not None:
            drawn = torch.from_numpy(draws.uniform(FEATURES))
        return (points + drawn).float(), torch.from_numpy(ids % CLASSES)


class Ragged(Fetched):
    """As `Fetched`, with inputs of another structure."""

    def fetch(self, ids: Any, draws: rng.Draws | None) -> Any:
        points, classes = super().fetch(ids, draws)
        return {"points": points, "widths": torch.ones(2 * len(ids))}, classes


class Alike(Dataset[tuple[Tensor, int]]):
    """Zeros, of one class or of several, and from the sample `until` on numbers of its
    own."""

    def __init__(
        self, samples: int, classes: int = 1, until: int = 1000, own: int = 0
    ) -> None:
        self.samples = samples
        self.classes = classes
        self.until = until
        self.own = own

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        value = 0 if index < self.until else 1000 * self.own + index
        return torch.full((FEATURES,), float(value)), index % self.classes


class Endless(IterableDataset[Any]):
    """The same stream for each split."""

    def __len__(self) -> int:
        return 16

    def __iter__(self) -> Any:
        return iter(
            [(torch.ones(FEATURES) * index, index % CLASSES) for index in range(64)]
        )


class Watched(Drawn):
    """Counts its reads, keeps what it read, and fails or waits on request."""

    reads = 0

    def __init__(self, split: str, fails: bool = False, seconds: float = 0.0) -> None:
        super().__init__(24, split)
        self.kept: list[int] = []
        self.fails = fails
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        Watched.reads += 1
        self.kept.append(index)
        if self.fails and index == 20:
            raise ValueError("sample 20 is broken")
        time.sleep(self.seconds)
        return super().__getitem__(index)


class Folder(Dataset[Any]):
    """Images of a folder, cut under a seed of each split or of all, augmented in
    training."""

    def __init__(self, root: str, part: str, own_seed: bool, how: str) -> None:
        own = torch.Generator().manual_seed(SPLITS.index(part) if own_seed else 0)
        whole = ImageFolder(root)
        self.part = random_split(whole, [0.7, 0.15, 0.15], generator=own)[
            SPLITS.index(part)
        ]
        steps: list[Any] = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        if part == "train":
            steps = [v2.RandomHorizontalFlip(), v2.ColorJitter(0.5), *steps]
        transform = v2.Compose(steps)
        if how == "its own":
            self.transform: Callable[[Any], Any] | None = transform
        else:
            whole.transform = transform
            self.transform = None

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.part[index]
        return (self.transform(image) if self.transform is not None else image), label


def spec(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{__name__}.{name}", **arguments}


def made(train: Any, validation: Any, test: Any = None, **data: Any) -> Settings:
    return typed(data={"train": train, "validation": validation, "test": test, **data})


def checked(settings: Settings) -> list[str]:
    """Return the lines that the check logs."""
    lines: list[str] = []
    overlap.check(settings, sources.build_sources(settings), lines.append)
    return lines


def command_line(
    train: Any, validation: Any, test: Any, *words: str
) -> tuple[str, ...]:
    splits = {"train": train, "validation": validation, "test": test}
    return (
        *SHORT,
        *tiny.overrides(tiny.DENSE, tiny.DATA | splits),
        "trainer.max_steps=4",
        *words,
    )


@pytest.mark.parametrize("preset", ["strict", "seeded", "fast"])
def test_sets_that_would_repeat_each_other_are_refused(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line with the remedy, which is then obeyed. Negative control: that run
    trains."""
    both = spec("Drawn", samples=48), spec("Drawn", samples=24)
    words = command_line(*both, None, f"determinism={preset}", "determinism.threads=1")
    line = refused(tmp_path / "a", capsys, *words)
    assert line.startswith(
        "data.validation: expected other samples than those of data.train, got"
    )
    assert "from Drawn; " in line
    assert 'rng.generator(rng.key(seed, "data", number of the split))' in line
    both = tuple(spec("Drawn", samples=24, split=split) for split in SPLITS[:2])
    words = command_line(*both, None, f"determinism={preset}", "determinism.threads=1")
    assert "data:" not in (trained(tmp_path / "b", *words) / "train.log").read_text()


def test_the_same_data_on_purpose_is_logged(tmp_path: Path) -> None:
    """Equal configurations: in one line, without a warning; a resumed run is not
    checked again."""
    whole, test = (
        spec("Drawn", samples=24, split=split) for split in ("train", "test")
    )
    run = trained(tmp_path / "run", *command_line(test, whole, whole))
    lines = [
        line for line in (run / "train.log").read_text().splitlines() if "data:" in line
    ]
    assert lines == [
        "data: test has the samples of validation, as their configurations are equal"
    ]
    assert record.read_summary(run)["status"] == "finished"
    assert len(checked(made(whole, whole, test))) == 1, (
        "training and validation are the same"
    )


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("Normal", 300, 101), ("Drawn", 48, 24), ("Fetched", 48, 24), ("Ragged", 48, 24)],
)
def test_repeats_are_found_without_augmentation_and_for_every_size(
    name: str, first: int, second: int
) -> None:
    settings = made(spec(name, samples=first), spec(name, samples=second))
    with pytest.raises(Exception, match=rf"^data\.validation: .* from {name}; "):
        checked(settings)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"samples": 40}, {"samples": 24}),
        ({"samples": 40, "classes": 2}, {"samples": 24, "classes": 2}),
        ({"samples": 40, "until": 8, "own": 1}, {"samples": 24, "until": 8, "own": 2}),
    ],
)
def test_samples_that_only_look_alike_are_not_refused(one: Any, other: Any) -> None:
    """Constant samples, of one class or two, and first samples that are all zeros."""
    lines = checked(made(spec("Alike", **one), spec("Alike", **other)))
    expected = [
        "warning: data: 8 of 24 validation samples are also in training (validation 0"
        " is training 0)"
    ]
    assert lines == (expected if "own" in one else [])


def test_a_warning_of_common_samples_is_kept_in_the_record(tmp_path: Path) -> None:
    """Also through a resume, which does not compare them again; a report on sweeps
    names it. Negative control: a run without common samples."""
    splits = (
        spec("Alike", samples=40, until=8, own=1),
        spec("Alike", samples=24, until=8, own=2),
    )
    run = begun(tmp_path / "run", *command_line(*splits, None))
    assert work(run, StopAt(3)) == 143
    [warning] = record.read_summary(run)["warnings"]
    assert warning.startswith("data: 8 of 24 validation samples are also in training (")
    assert differences.OVERLAP in warning
    assert work(run) == 0
    assert record.read_summary(run)["warnings"] == [warning]
    alone = (
        spec("Alike", samples=40, until=0, own=1),
        spec("Alike", samples=24, until=0, own=2),
    )
    assert (
        record.read_summary(trained(tmp_path / "b", *command_line(*alone, None)))[
            "warnings"
        ]
        == []
    )


def test_samples_that_are_drawn_when_loaded_do_not_repeat() -> None:
    """They are compared as each split draws them, also if the configurations are
    equal."""
    noisy = {"_target_": "tests.tiny.data.Noisy", "samples": 24}
    assert (
        checked(made(noisy, {**noisy, "samples": 16}, {**noisy, "samples": 16})) == []
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 400 images in two classes, all different."""
    place = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for index in range(400):
        path = place / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    return place


@pytest.mark.parametrize("how", ["its own", "that of the folder"])
def test_images_that_are_also_in_training_are_counted(folder: Path, how: str) -> None:
    """As often as the splits have files in common, although training images are
    augmented.

    Negative control: no line if the splits have none in common.
    """

    def of(own_seed: bool) -> Settings:
        given = {"root": str(folder), "own_seed": own_seed, "how": how}
        return made(*(spec("Folder", part=part, **given) for part in SPLITS))

    built = sources.build_sources(of(own_seed=True))
    train, *others = (list(built[split].dataset.part.indices) for split in SPLITS)
    counts = [len(set(train) & set(part)) for part in others]
    first = min(index for index, file in enumerate(others[0]) if file in train)
    place = train.index(others[0][first])
    assert min(counts) > 20
    assert checked(of(own_seed=True)) == [
        f"warning: data: {counts[0]} of 60 validation and {counts[1]} of 60 test"
        f" samples are also in training (validation {first} is training {place})"
    ]
    assert checked(of(own_seed=False)) == [], "negative control"


def test_fetched_samples_that_are_also_in_training_are_counted() -> None:
    for name in ("Fetched", "Ragged"):
        lines = checked(made(spec(name, samples=48), spec(name, samples=24, first=40)))
        assert lines == [
            "warning: data: 8 of 24 validation samples are also in training (validation"
            " 0 is training 40)"
        ]


def test_the_check_changes_nothing() -> None:
    """Neither data sets, classes, nor generators. Negative control: they were read."""
    settings = made(*(spec("Watched", split=split, seconds=0.01) for split in SPLITS))
    built = sources.build_sources(settings)
    Watched.reads = 0
    before = time.monotonic()
    drawn = (random.random(), np.random.rand(), torch.rand(()))
    rng.seed_cpu(1)
    expected = random.random(), np.random.rand(), torch.rand(())
    rng.seed_cpu(1)
    overlap.check(settings, built, print)
    assert (random.random(), np.random.rand(), torch.rand(())) == expected != drawn
    assert time.monotonic() - before > 0.01 * 3 * 24, "negative control"
    assert [source.dataset.kept for source in built.values()] == [[], [], []]
    assert Watched.reads == 0


def test_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says how many samples were compared; a sample that takes longest is
    given up."""
    both = [spec("Watched", split=split, seconds=0.05) for split in SPLITS[:2]]
    monkeypatch.setattr(overlap, "_SECONDS", 1)
    [line] = checked(made(*both))
    assert line.startswith(
        "data: no sample of another split was found in training; compared in"
    )
    assert "of 24 validation samples" in line
    monkeypatch.setattr(overlap, "_LIMIT_SECONDS", 1)
    both = [spec("Watched", split=split, seconds=60.0) for split in SPLITS[:2]]
    assert checked(made(*both)) == [
        f"{NOT_COMPARED} a sample of data.train was not read within 1 {S}"
    ]
    monkeypatch.setattr(overlap, "_SECONDS", 0)
    # as in code that nothing interrupts
    monkeypatch.setattr(signal, "alarm", lambda _: None)
    assert checked(made(*both)) == [
        f"{NOT_COMPARED} a sample was not read within 1 {S}"
    ]


class SlowAtFirst(Drawn):
    """Takes long to read its first sample, as over a network."""

    seconds = 1.2

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        self.seconds = 0.0
        return super().__getitem__(index)


def test_samples_that_are_slow_at_first_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overlap, "_SECONDS", 1)
    both = spec("SlowAtFirst", samples=48), spec("SlowAtFirst", samples=24)
    with pytest.raises(InputError, match=r"^data\.validation: .* from SlowAtFirst; "):
        checked(made(*both))


class Vast(Dataset[tuple[Tensor, int]]):
    """As many samples as one says; some are the same as those of another split."""

    def __init__(self, samples: int, offset: int) -> None:
        self.samples = samples
        self.offset = offset

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((FEATURES,), self.offset + index, dtype=torch.float64), 0


@pytest.mark.parametrize("samples", [100_000, 10**12])
def test_the_comparison_starts_at_once_for_any_length(samples: int) -> None:
    """Nothing is computed for each index. Splits that repeat are refused, whatever
    their sizes."""
    assert len([*itertools.islice(overlap._ids(samples, 50), 300)]) == 300
    train = spec("Vast", samples=samples, offset=0)
    validation = spec("Vast", samples=50, offset=0)
    with pytest.raises(InputError, match=r"^data\.validation: .* from Vast; "):
        checked(made(train, validation))
    [line] = checked(made(train, validation | {"offset": -(10**13)}))
    assert line.startswith(
        "data: no sample of another split was found in training; compared in"
    )
    assert "50 of 50 validation" in line


def test_every_id_is_read_once() -> None:
    for n, shared in ((24, 24), (1000, 24), (1000, 1000), (70_000, 300)):
        ids = [*overlap._ids(n, shared)]
        assert sorted(ids) == [*range(n)]
        assert ids[: min(shared, 64)] == [*overlap._ids(shared, shared)][:64]


def test_errors_of_a_data_set_are_left_to_the_run() -> None:
    """They are named. What was read before is compared, so that splits that repeat are
    refused."""
    broken = [spec("Watched", split=split, fails=True) for split in SPLITS[:2]]
    [line] = [line for line in checked(made(*broken)) if "warning" in line]
    assert line == f"{NOT_COMPARED} ValueError: sample 20 is broken in data.train"
    broken = [spec("Watched", split="train", fails=fails) for fails in (True, False)]
    with pytest.raises(Exception, match=r"^data\.validation: .* from Watched; "):
        checked(made(*broken))


def test_streams_are_left_out() -> None:
    stream = spec("Endless")
    lines = checked(made(stream, {**stream}, None, streams=2, samples_per_epoch=16))
    assert lines == [
        "data: the samples of train and validation are not compared with other splits:"
        " iterable data sets"
    ]


def test_the_same_samples_can_be_intended() -> None:
    both = spec("Drawn", samples=48), spec("Drawn", samples=24)
    assert checked(made(*both, compare_splits=False)) == []
    with pytest.raises(InputError, match=r"set data\.compare_splits=false$"):
        checked(made(*both))


def test_a_source_without_seeding_is_read_as_it_is() -> None:
    source = Source(Drawn(4, "train"), "train", seed=0, seeded=False)
    ids = np.arange(4)
    assert len(list(overlap._hashes(source, iter(ids.tolist())))) == 4
