"""Classes, functions and keys in settings and configs/, and those that a record may use.

An untrusted record may only use names from the YAML files of this checkout. A list of packages
would be too permissive: it would allow every constructor of torch, some of which generate code.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from seedbed import project
from seedbed.errors import InputError

_FUNCTIONS = ("data.collate", "data.training_collate")  # keys that hold a function's name


def require_trusted(
    settings: DictConfig, run: Path, trust: Sequence[str] = (), places: Sequence[Path] = ()
) -> None:
    """Raise InputError for a record that could run code not named in this checkout's YAML files.

    Its classes and functions must be named there, its environment variables in a preset
    (LD_PRELOAD runs code), and its keys must be plain names (code is generated from some).

    Args:
        trust: additional names of classes, of functions, or of packages with all they define.
        places: folders that the run imports from before this project's.
    """
    files, recorded = list(_project_files()), OmegaConf.to_container(settings)
    named = [each for tree in files for each in targets_of(tree)]
    # Records are read without their loggers, so these classes are not needed.
    known = {name for key, name in named if not key.startswith("logger.")}
    presets = [tree for tree in files if [*tree] == ["determinism"]]
    variables = {place for tree in presets for place, *_ in entries(tree)}
    for place, name, _ in entries(recorded):
        if not re.fullmatch(r"[\w.-]+", name):
            raise InputError(
                f"{run}: expected keys of letters, digits and _ in the record, got {name!r}"
            )
        if place.startswith("determinism.env.") and place not in variables:
            raise InputError(
                f"{run}: expected environment variables that configs/determinism names, got {name} "
                "in the record; if it is harmless, add it to a preset there"
            )
    places = [*places, project.root() / "src", project.root(), *map(Path, sys.path)]
    for key, target in targets_of(recorded):
        if target not in {*known, *trust} and not any(_defines(n, target, places) for n in trust):
            raise InputError(
                f"{run}: expected classes that a file of configs/ names, got {target} ({key}) in "
                f"the record; if you trust it: --trust {target}"
            )


def targets_of(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield key and dotted name of each class or function in settings (plain dicts and lists)."""
    for place, name, value in entries(tree):
        is_function = place in _FUNCTIONS and value is not None
        if not isinstance(value, Mapping | list) and (name == "_target_" or is_function):
            yield place, str(value)


def _defines(package: str, target: str, places: Sequence[Path]) -> bool:
    """Return whether a package's own source defines a class or function; nothing is imported.

    A name that a module imports or assigns does not count: `from subprocess import run` in one of
    them would let a record run any program.
    """
    module, _, name = target.rpartition(".")
    if not f"{module}.".startswith(f"{package}.") or "/" in module:
        return False
    stem = module.replace(".", "/")
    files = [place / f"{stem}{end}" for place in places for end in ("/__init__.py", ".py")]
    file = next((each for each in files if each.is_file()), None)
    try:
        body = ast.parse(file.read_bytes() if file else b"").body
    except (OSError, SyntaxError, ValueError):
        return False
    own = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    others = (node for each in body if each not in own for node in ast.walk(each))
    names = {getattr(node, "asname", None) or getattr(node, "name", None) for node in others}
    return name in {node.name for node in own} - names


def known_keys() -> set[str]:
    """Return the groups of configs/ and the keys in its files, for suggesting the nearest one."""
    places = {place for tree in _project_files() for place, *_ in entries(tree)}
    return {place for place in places if not place.startswith("defaults.")}


def _project_files() -> Iterator[Mapping[str, Any]]:
    """Yield the part of a configuration that each YAML file of configs/ sets; skip broken files."""
    configs = project.configs()
    for path in map(Path, glob(f"{configs}/**/*.yaml", recursive=True)):  # follows symlinks
        group = path.relative_to(configs).parts[0]
        with suppress(OSError, ValueError, yaml.YAMLError):
            if isinstance(tree := yaml.safe_load(path.read_bytes()), dict):
                is_whole = group == "experiment" or path.parent == configs
                yield tree if is_whole else {group: tree}


def entries(tree: Any, key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield dotted path, name and value of everything in nested mappings and lists."""
    if isinstance(tree, list):
        tree = dict(enumerate(tree))
    for name, value in tree.items() if isinstance(tree, Mapping) else ():
        place = f"{key}.{name}" if key else str(name)
        yield place, str(name), value
        yield from entries(value, place)
