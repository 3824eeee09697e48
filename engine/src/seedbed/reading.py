"""A record as typed objects, for notebooks: `seedbed.read(RUN)`; nothing in it is executed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from seedbed import record
from seedbed.record import untrusted


class Metrics(NamedTuple):
    """A row of metrics.csv."""

    step: int
    epoch: float
    phase: str  # train, validation or test
    values: Mapping[str, float]  # loss, learning_rate and metrics, by name


class Fingerprints(NamedTuple):
    """A row of fingerprints.csv."""

    step: int
    stages: Mapping[str, str]  # `names.STAGES` to hashes


@dataclass(frozen=True)
class Run:
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

        rows = [{**row._asdict(), **row.values} for row in self.metrics]
        return pd.DataFrame([{k: v for k, v in row.items() if k != "values"} for row in rows])


def read(run: str | Path) -> Run:
    """Read a run folder; raise InputError if it is none, or is damaged."""
    folder = record.require_run(Path(run))
    untrusted.require_no_way_out(folder)
    metrics, file = list[Metrics](), folder / "fingerprints.csv"
    for row in record.read_metrics(folder):
        values = {name: float(cell) for name, cell in record.values_of(row).items()}
        metrics.append(Metrics(int(row["step"]), float(row["epoch"]), row["phase"], values))
    stages = record.read_fingerprints(folder) if file.is_file() else []
    return Run(
        folder,
        record.read_config(folder),
        record.read_summary(folder),
        record.read_json(folder / "environment.json"),
        metrics,
        [Fingerprints(int(row.pop("step")), row) for row in stages],
    )
