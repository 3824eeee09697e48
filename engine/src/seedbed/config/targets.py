"""What settings and the YAML files of configs/ name: classes, functions and keys."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from seedbed import project
from seedbed.names import flatten

_FUNCTIONS = ("data.collate", "data.training_collate")  # keys that hold a function's name


def targets_of(tree: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and the dotted name of each class or function that settings name.

    Args:
        tree: settings, or a part of them; nothing in it is resolved.
        key: where the part stands, such as `data`.
    """
    if isinstance(tree, DictConfig):
        tree = OmegaConf.to_container(tree)
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    for name, value in tree.items() if isinstance(tree, Mapping) else ():
        place = f"{key}.{name}" if key else str(name)
        if isinstance(value, Mapping | list):
            yield from targets_of(value, place)
        elif name == "_target_" or (place in _FUNCTIONS and value is not None):
            yield place, str(value)


def project_files() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the group of each YAML file of configs/, empty for those of all sections, and its keys.

    Nothing is resolved, and files that are broken are left out.
    """
    configs = project.configs()
    for path in map(Path, glob(f"{configs}/**/*.yaml", recursive=True)):  # also through links
        group = path.relative_to(configs).parts[0]
        with suppress(OSError, ValueError, YAMLError, OmegaConfBaseException):
            tree: Any = OmegaConf.to_container(OmegaConf.load(path))
            if isinstance(tree, dict):
                yield "" if group == "experiment" or path.parent == configs else group, tree


def known_keys() -> set[str]:
    """Return the groups of configs/ and the keys of its files, for naming the nearest."""
    known = set()
    for group, keys in project_files():
        for leaf in flatten({group: keys} if group else keys):
            parts = leaf.split(".")
            known |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return known
