"""The jobs that a sweep was to have, from the multirun.yaml that Hydra leaves in its folder."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from seedbed.errors import InputError, printable
from seedbed.record import untrusted

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_JOB_NUMBER = "${hydra.job.num}"
MAX_JOBS = 10_000
REFUSED = "refused.txt"  # why a job was refused, in a folder without a record
_MAX_LETTERS = 20_000  # of all overrides: Hydra's parser is slow


def planned(folder: Path) -> list[list[str]]:
    """Return the overrides of each job of a sweep, by job number.

    Empty where no plan can be read: a folder that Hydra did not make, one whose subfolders do not
    begin with the job's number, a sweeper that decides on its jobs as it goes (optuna).
    """
    try:
        # Not resolved: the file is full of resolvers that only a running Hydra has.
        plan: Any = OmegaConf.to_container(
            untrusted.read_config(folder / "multirun.yaml", resolved=False)
        )
        sweeper, task = plan["hydra"]["sweeper"], plan["hydra"]["overrides"]["task"]
        numbered = str(plan["hydra"]["sweep"]["subdir"]).startswith(_JOB_NUMBER)
        words = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
        words += map(str, task)
    except (AttributeError, InputError, KeyError, TypeError):
        return []
    if not numbered or not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
        return []
    return _product(words)


def missing(folder: Path) -> list[tuple[int, list[str]]]:
    """Return number and overrides of the jobs that left no record: refused, or never started."""
    if not folder.is_dir():
        return []
    started = {path.name.split("_")[0] for path in folder.iterdir() if _has_begun(path)}
    return [(n, job) for n, job in enumerate(planned(folder)) if str(n) not in started]


def refusal(folder: Path, number: int) -> str:
    """Return why a job that left no record was refused; empty if it never started."""
    for path in folder.glob(f"{number}_*/{REFUSED}"):
        with suppress(InputError, OSError):
            return printable(
                untrusted.read_bytes(path, _MAX_LETTERS).decode(errors="replace").strip()
            )
    return ""


def _has_begun(folder: Path) -> bool:
    """Return whether there is a record: a folder alone is made before a job is checked."""
    return any(True for name in ("config.yaml", "summary.json") for _ in folder.rglob(name))


def require_countable(folder: Path, overrides: Sequence[str]) -> None:
    """Raise InputError for overrides of a folder that make more jobs than anybody waits for."""
    if not _count(_parsed(overrides)) <= MAX_JOBS:
        raise InputError(
            f"{folder}: expected a sweep of at most {MAX_JOBS:,} jobs, got more, or overrides that "
            "Hydra cannot read; start it again in parts"
        )


def _product(overrides: list[str]) -> list[list[str]]:
    """Return the jobs that Hydra's own sweeper makes of some overrides, in its order."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.errors import HydraException

    parsed = _parsed(overrides)
    if parsed is None or not _count(parsed) <= MAX_JOBS:
        return []
    try:
        batches = BasicSweeper.split_arguments(parsed, None)
    except HydraException:
        return []
    return [list(job) for batch in batches for job in batch]


def _parsed(overrides: Sequence[str]) -> "list[Override] | None":
    """Return overrides as Hydra reads them; None if it does not, or would not for long."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if sum(map(len, overrides)) > _MAX_LETTERS:
        return None
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except (HydraException, RecursionError):
        return None


def _count(parsed: "list[Override] | None") -> float:
    """Return how many jobs overrides make, without making them; infinite if it is not known."""
    from hydra.core.override_parser.types import ChoiceSweep, RangeSweep

    count = 1.0 if parsed is not None else math.inf
    for value in (one.value() for one in parsed or () if one.is_sweep_override()):
        if isinstance(value, ChoiceSweep):
            count *= len(value.list)
        elif isinstance(value, RangeSweep):
            start, stop, step = map(float, (value.start or 0, value.stop or 0, value.step))
            count *= max(0.0, math.ceil((stop - start) / step)) if step else math.inf
    return count
