"""What a stranger's record may name: what YAML files of this checkout name, and no more.

Asked before a record is replayed or evaluated. A list of packages would be too wide: it opens every
constructor of torch, some of which generate code, to whoever wrote the record.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed.config.settings import SUPERVISED
from seedbed.config.targets import project_files, targets_of
from seedbed.errors import InputError, printable


def require_trusted(settings: DictConfig, run: Path, trust: Sequence[str] = ()) -> None:
    """Refuse a record that could run code which no YAML file of this checkout names.

    Args:
        trust: further names, each of a class or function, or of a package and all in it.

    Raises:
        InputError: it names others, or sets an environment variable that no preset here names
        (LD_PRELOAD runs code), or has keys that are no names (code is generated from some).
    """
    tree: Any = OmegaConf.to_container(settings)
    known, variables = {SUPERVISED}, set[str]()
    for group, keys in project_files():
        if group == "determinism":
            variables |= set(keys.get("env") or ())
        if group != "logger":  # nobody else's run is logged
            known |= {target for _, target in targets_of(keys, group)}
    for key in _keys(tree):
        if not re.fullmatch(r"[\w.-]+", key):
            raise InputError(
                f"{run}: expected keys of letters, digits and _ in the record, got "
                f"{printable(repr(key))}"
            )
    for key, target in targets_of(tree):
        if target not in known and not any(f"{target}.".startswith(f"{name}.") for name in trust):
            raise InputError(
                f"{run}: expected classes that a file of configs/ names, got {target} ({key}) in "
                f"the record; if you trust it: --trust {target}"
            )
    for name in OmegaConf.select(settings, "determinism.env") or ():
        if name not in variables:
            raise InputError(
                f"{run}: expected environment variables that configs/determinism names, got {name} "
                "in the record; if it is harmless, name it in a preset there"
            )


def _keys(tree: Any) -> Iterator[str]:
    if isinstance(tree, Mapping):
        yield from map(str, tree)
    for value in tree.values() if isinstance(tree, Mapping) else tree:
        if isinstance(value, Mapping | list):
            yield from _keys(value)
