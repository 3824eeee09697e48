"""A record as typed objects, for notebooks: `seedbed.read(RUN)`; nothing in it is
executed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from seedbed import record
from seedbed.record import untrusted


class Metrics(NamedTuple):
    """A row of metrics.csv; its phase is train, validation or test."""

    step: int
    epoch: float
    phase: str
    values: Mapping[str, float]  # loss, learning_rate and metrics, by name


class Fingerprints(NamedTuple):
    """A row of fingerprints.csv."""

    step: int
    stages: Mapping[str, str]  # `names.STAGES` to hashes


@dataclass(frozen=True)
class RunRecord:
    """The record of a run."""

    folder: Path
    config: DictConfig
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: list[Metrics]
    fingerprints: list[Fingerprints]

    def frame(self) -> Any:
        """Return the metrics as a pandas.DataFrame, a row for each of metrics.csv."""
        import pandas as pd

        return pd.DataFrame(
            [{**row._asdict(), **row.values} for row in self.metrics]
        ).drop(columns="values")


def read(run: str | Path) -> RunRecord:
    """Read a run folder; raise InputError if it is none, or is damaged."""
    folder = record.require_run(Path(run))
    untrusted.reject_external_links(folder)
    metrics = [
        Metrics(
            int(row["step"]),
            float(row["epoch"]),
            row["phase"],
            {name: float(cell) for name, cell in record.values_of(row).items()},
        )
        for row in record.read_metrics(folder)
    ]
    is_there = (folder / "fingerprints.csv").is_file()
    stages = record.read_fingerprints(folder) if is_there else []
    fingerprints = [Fingerprints(int(row.pop("step")), row) for row in stages]
    config = record.read_config(folder)
    summary = record.read_summary(folder)
    environment = record.read_environment(folder)
    return RunRecord(folder, config, summary, environment, metrics, fingerprints)
