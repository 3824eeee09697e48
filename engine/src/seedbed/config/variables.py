"""Values that a configuration takes from environment variables into the record, secrets
above all."""

import re
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf

from seedbed.config.build import entries, project_files

_NAMES = "token|secret|passw|credential|api_?key|access_?key|private_?key"
_SECRET = re.compile(rf"\$\{{oc\.env:\s*(\w*({_NAMES})\w*)", re.IGNORECASE)
_ANY = re.compile(r"\$\{oc\.env:\s*(\w+)")


def secrets_of(composed: DictConfig) -> Iterator[tuple[str, str]]:
    """Yield key and variable of each value from an environment variable named like a
    secret."""
    for key, _, value in entries(OmegaConf.to_container(composed)):
        if isinstance(value, str) and (match := _SECRET.search(value)):
            yield key, match[1]


def is_secret(variable: str) -> bool:
    """Return whether an environment variable is named like a secret."""
    return re.search(_NAMES, variable, re.IGNORECASE) is not None


def of_project() -> Iterator[tuple[str, str]]:
    """Yield key and variable of each value that files of configs/ take from the
    environment."""
    for tree in project_files():
        for key, _, value in entries(tree):
            if isinstance(value, str) and (match := _ANY.search(value)):
                yield key, match[1]
