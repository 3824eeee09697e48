"""The jobs that a sweep was to have, from the multirun.yaml that Hydra leaves in its folder."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seedbed import record
from seedbed.errors import InputError

_JOB_NUMBER = "${hydra.job.num}"


def planned(folder: Path) -> list[list[str]]:
    """Return the overrides of each job of a sweep, by job number.

    Empty where no plan can be read: a folder that Hydra did not make, one whose subfolders do not
    begin with the job's number, a sweeper that decides on its jobs as it goes (optuna).
    """
    try:
        # Not resolved: the file is full of resolvers that only a running Hydra has.
        plan: Any = OmegaConf.to_container(record.read_config(folder / "multirun.yaml"))
        sweeper, task = plan["hydra"]["sweeper"], plan["hydra"]["overrides"]["task"]
        numbered = str(plan["hydra"]["sweep"]["subdir"]).startswith(_JOB_NUMBER)
    except (InputError, KeyError, TypeError):
        return []
    if not numbered or not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
        return []
    return _product([*(f"{k}={v}" for k, v in (sweeper.get("params") or {}).items()), *task])


def missing(folder: Path) -> list[tuple[int, list[str]]]:
    """Return number and overrides of the jobs that left no record: refused, or never started."""
    if not folder.is_dir():
        return []
    started = {path.name.split("_")[0] for path in folder.iterdir() if _has_begun(path)}
    return [(n, job) for n, job in enumerate(planned(folder)) if str(n) not in started]


def _has_begun(folder: Path) -> bool:
    """Say whether there is a record: a folder alone is made before a job is checked."""
    return any(True for name in ("config.yaml", "summary.json") for _ in folder.rglob(name))


def _product(overrides: list[str]) -> list[list[str]]:
    """Return the jobs that Hydra's own sweeper makes of some overrides, in its order."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
        batches = BasicSweeper.split_arguments(parsed, None)
    except HydraException:
        return []
    return [list(job) for batch in batches for job in batch]
