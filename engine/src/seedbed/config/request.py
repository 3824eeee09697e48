"""From the command that resumes or replays a run to the training process."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf


@dataclass(frozen=True)
class Request:
    """What somebody who resumes or replays a run asks for.

    Attributes:
        settings: new values by key of the configuration, such as `data.num_workers`.
        allow_changed: resume although something changed that can alter bits.
        record: the run folder of which this run is a replay; it begins with its checkpoint of
            `first_step`, stops at the first row that differs from its tables, and after
            `last_step`, if there is one.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    allow_changed: bool = False
    record: str | None = None
    first_step: int = 0
    last_step: int | None = None
    stops_where_it_differs: bool = True

    def applied_to(self, recorded: DictConfig) -> DictConfig:
        """Return a configuration with the values that were asked for."""
        settings: DictConfig = OmegaConf.create(OmegaConf.to_container(recorded))  # type: ignore[assignment]
        for key, value in self.settings.items():
            OmegaConf.update(settings, key, value, merge=False, force_add=True)
        return settings
