"""What somebody who resumes a run asks for, on its way to the training process."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf


@dataclass(frozen=True)
class Request:
    """What somebody who resumes a run asks for.

    Attributes:
        settings: new values by key of the configuration, such as `data.num_workers`.
        allow_changed: resume although something changed that can alter bits.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    allow_changed: bool = False

    def text(self) -> str:
        """Return it as JSON, for the command line of the training process."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Request":
        """Read what `text` wrote."""
        return cls(**json.loads(text))

    def applied_to(self, recorded: DictConfig) -> DictConfig:
        """Return a configuration with the values that were asked for."""
        settings = OmegaConf.create(OmegaConf.to_container(recorded))
        assert isinstance(settings, DictConfig)
        for key, value in self.settings.items():
            OmegaConf.update(settings, key, value, merge=False, force_add=True)
        return settings
