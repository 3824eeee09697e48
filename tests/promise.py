"""Every YAML file of the project as a run of a few steps, in each way that must change no bit."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from tests.running import ROOT, composed, in_turn
from torch.utils.data import Dataset, IterableDataset

from seedbed import config, launch, record
from seedbed.errors import InputError

STEPS, STOPPED_AFTER, BATCH = 4, 3, 8  # two steps an epoch: a validation lies before the stop
TABLES = ("fingerprints.csv", "metrics.csv", "test_predictions.csv")
SHORT = (
    "determinism=strict",
    "determinism.threads=1",
    "trainer.device=cpu",
    "trainer.processes=1",
    "trainer.shards=1",
    "trainer.compile=false",
    f"trainer.max_steps={STEPS}",
    "trainer.log_every_steps=1",
    "trainer.validate_every_epochs=1",
    "trainer.checkpoint_every_steps=0",
    "logger=csv",
    f"data.batch_size={BATCH}",
    f"data.eval_batch_size={BATCH}",
)
# What is done otherwise in each way to train.
WAYS: dict[str, tuple[str, ...]] = {
    "first": (),
    "again": (),
    "two_workers": ("data.num_workers=2",),
    "resumed": (),
    "other_seed": ("seed=1",),
}

# What each group of YAML files is trained with one of.
OTHER = {"data": "model", "model": "data", "method": "model"}


class Few(Dataset[Any]):
    """The first samples of a data set, which is otherwise as it is.

    Attributes:
        dataset, indices: the whole, and which of its samples these are: samplers look there.
    """

    def __init__(self, dataset: Any, samples: int) -> None:
        self.dataset, self.indices = dataset, range(min(samples, len(dataset)))
        if hasattr(dataset, "fetch"):
            self.fetch = dataset.fetch
        self.sha256 = getattr(dataset, "sha256", {})

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def few(dataset: Any, samples: int) -> Any:
    """Return the first samples of a data set; an iterable one as it is."""
    return dataset if isinstance(dataset, IterableDataset) else Few(dataset, samples)


def names(group: str) -> list[str]:
    """Return the options of a group of configs/."""
    return sorted(path.stem for path in (ROOT / "configs" / group).glob("*.yaml"))


def compose(*overrides: str) -> DictConfig:
    """Return the resolved configuration of a short run on few samples.

    Raises:
        InputError: it is none that could be trained.
    """
    resolved = config.resolve(composed(*overrides, *SHORT))
    config.check(resolved)
    plain: dict[str, Any] = OmegaConf.to_container(resolved)  # type: ignore[assignment]
    data = plain["data"]
    for split, samples in (("train", 2 * BATCH), ("validation", BATCH), ("test", BATCH)):
        if data.get(split):
            first = {"_target_": f"{__name__}.few", "dataset": data[split], "samples": samples}
            data[split] = first
    if data.get("streams"):
        data |= {"streams": 2, "samples_per_epoch": 2 * BATCH}
    return OmegaConf.create(plain)


def cases() -> list[str]:
    """Return a word of the command line for every file of the project's groups in configs/."""
    return [f"{g}={name}" for g in ("experiment", *OTHER) for name in names(g)]


def command_line(case: str, partners: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line of a case.

    Args:
        partners: what a data set, a model or a method is trained with; of others the first that is
            accepted.
    """
    group = case.partition("=")[0]
    if group == "experiment":
        return (case,)
    pairs = [(case, *partner) for partner in _partners(OTHER[group], partners.get(case))]
    return next(filter(_is_accepted, pairs), pairs[0])


def _partners(group: str, chosen: str | None) -> Iterator[tuple[str, ...]]:
    if chosen is not None:
        yield (chosen,)
        return
    yield ()  # the default
    for name in names(group):
        yield (f"{group}={name}",)


def _is_accepted(overrides: Sequence[str]) -> bool:
    try:
        compose(*overrides)
    except InputError:
        return False
    return True


def alike(runs: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return for each case the first that has the same configuration: it is trained for both."""
    texts = {case: OmegaConf.to_yaml(compose(*words)) for case, words in runs.items()}
    firsts = {text: case for case, text in reversed(texts.items())}
    return {case: firsts[text] for case, text in texts.items()}


def train(runs: Mapping[str, tuple[str, ...]], place: Path) -> None:
    """Train each case in each way, into PLACE/WAY/CASE; what must repeat, in another process."""
    for way, otherwise in WAYS.items():
        for case, words in runs.items():
            launch.create_run_folder(place / way / case, compose(*words, *otherwise))
    folders = {way: [place / way / case for case in runs] for way in WAYS}
    once = [*folders["first"], *folders["two_workers"], *folders["other_seed"]]
    with ThreadPoolExecutor(2) as pool:
        parts = (
            pool.submit(in_turn, once),
            pool.submit(_again, folders["again"], folders["resumed"]),
        )
        for part in parts:
            part.result()


def _again(again: Sequence[Path], resumed: Sequence[Path]) -> None:
    in_turn(resumed, "--stop-after", str(STOPPED_AFTER))
    stopped = [f for f in resumed if record.read_summary(f)["status"] == "interrupted"]
    in_turn([*again, *stopped])


def differences(a: Path, b: Path) -> list[str]:
    """Name everything in which two finished runs do not have the same bits."""
    left, right = record.read_summary(a), record.read_summary(b)
    for summary in (left, right):
        if summary["status"] != "finished":
            return [f"{summary['status']}: {summary['error']}"]
    found = [name for name in TABLES if _bytes(a / name) != _bytes(b / name)]
    keys = ("steps", "metrics", "objective", "fingerprints")
    return found + [f"summary: {key}" for key in keys if left[key] != right[key]]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
