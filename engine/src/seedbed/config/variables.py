"""Secrets that a configuration would take from environment variables into the
record."""

import re
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from seedbed.config.build import entries

_NAMES = "token|secret|passw|credential|api_?key|access_?key|private_?key"
_SECRET = re.compile(rf"\$\{{oc\.env:\s*(\w*({_NAMES})\w*)", re.IGNORECASE)


def secrets_of(composed: DictConfig) -> Iterator[tuple[str, str]]:
    """Yield key and variable of each value from an environment variable named like a
    secret."""
    for key, _, value in entries(OmegaConf.to_container(composed)):
        if isinstance(value, str) and (found := _SECRET.search(value)):
            yield key, found[1]
