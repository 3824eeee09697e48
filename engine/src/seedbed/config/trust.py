"""What a configuration may name: trusted classes, and known environment variables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import project
from seedbed.config.rules import SUPERVISED, require_sections
from seedbed.errors import InputError
from seedbed.names import flatten
from seedbed.record import untrusted


def is_trusted(target: str, trusted: Sequence[str]) -> bool:
    """Return whether a dotted name is one of those trusted, or lies in a trusted package.

    The default of every configuration is: it takes no argument.
    """
    return target in (*trusted, SUPERVISED) or any(
        target.startswith(f"{package}.") for package in trusted
    )


def require_targets(config: DictConfig) -> None:
    """Raise InputError for a `_target_` anywhere that trusted_packages do not name."""
    trusted = tuple(config.trusted_packages)

    def walk(tree: Any, key: str) -> None:
        if isinstance(tree, Mapping):
            target = tree.get("_target_")
            if target is not None and not is_trusted(str(target), trusted):
                raise InputError(
                    f"{key}._target_: expected a class from trusted_packages "
                    f"({', '.join(trusted)}), got {target}; add its package to trusted_packages"
                )
            for name, value in tree.items():
                walk(value, f"{key}.{name}" if key else str(name))
        elif isinstance(tree, list):
            for index, value in enumerate(tree):
                walk(value, f"{key}[{index}]")

    walk(OmegaConf.to_container(config), "")


def require_trusted(
    settings: DictConfig, run: Path, trust: Sequence[str] = (), root: Path | None = None
) -> list[str]:
    """Refuse a record that could run code which this checkout does not trust.

    Args:
        trust: packages that classes may come from, beside those of configs/config.yaml.
        root: the folder of the code that the record is to run with; None: this checkout.

    Returns:
        The packages to trust for it: those of the record, unless they are more than this
        checkout trusts.

    Raises:
        InputError: it names classes of other packages, or sets a variable that no preset here names
        (LD_PRELOAD runs code), or a section is none.
    """
    require_sections(settings)
    configs = project.configs()
    ours = untrusted.read_config(configs / "config.yaml", resolved=False).trusted_packages
    local = [*ours, *trust]
    for key, target in flatten(OmegaConf.to_container(settings)).items():
        if key.rpartition(".")[2] == "_target_" and not is_trusted(str(target), local):
            raise InputError(
                f"{run}: expected classes from trusted_packages of this checkout "
                f"({', '.join(local)}), got {target} ({key}) in the record"
                + _how_to_trust(str(target).rpartition(".")[0], run, root or project.root())
            )
    presets = (configs / "determinism").glob("*.yaml")
    known = {name for path in presets for name in _variables(path)}
    for name in OmegaConf.select(settings, "determinism.env") or ():
        if name not in known:
            raise InputError(
                f"{run}: expected environment variables that configs/determinism names, got {name} "
                "in the record; if it is harmless, name it in a preset there"
            )
    recorded = [str(package) for package in settings.get("trusted_packages") or ()]
    return recorded if all(is_trusted(package, local) for package in recorded) else local


def _how_to_trust(module: str, run: Path, root: Path) -> str:
    """Return what to do about a module that is not trusted, which may be gone from the code."""
    path = module.replace(".", "/")
    files = {f"{top}{path}{end}" for top in ("src/", "") for end in (".py", "/__init__.py")}
    try:
        recorded = untrusted.read_json(run / "environment.json").get("imported_files")
    except InputError:
        recorded = None
    was_there = isinstance(recorded, Mapping) and not files.isdisjoint(recorded)
    if was_there and not any((root / file).is_file() for file in files):
        return (
            ", which the code here no longer has; if you trust the record's: scripts/verify.py "
            f"{run} --restore-code --trust {module.partition('.')[0]}"
        )
    return f"; if you trust its code: --trust {module}"


def _variables(preset: Path) -> Sequence[str]:
    return list(untrusted.read_config(preset, resolved=False).get("env") or ())
