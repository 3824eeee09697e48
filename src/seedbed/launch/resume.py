"""Going on with a run: what may change, what has changed since, and what was left behind.

A checkpoint says under what it was made (its `origin`: settings, environment, code). Whoever goes
on from it compares that with what is in force now. The record always describes the process that
works on it, or did so last; `resumes` in summary.json says what each resume changed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import config, launch, offline, record
from seedbed.errors import InputError
from seedbed.record import neutral, source, untrusted


@dataclass(frozen=True)
class Request:
    """What somebody who goes on with a run asks for.

    Attributes:
        settings: new values by key of the configuration, such as `data.num_workers`.
        allow_changed: go on although something changed that can alter bits.
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


@dataclass(frozen=True)
class Change:
    """Something that is not as it was when the checkpoint was made."""

    key: str
    before: Any
    now: Any
    alters_bits: bool

    def __str__(self) -> str:
        return f"{self.key} {self.before} -> {self.now}"


@dataclass(frozen=True)
class Origin:
    """Under what a checkpoint is made.

    Attributes:
        settings: the configuration.
        environment: what environment.json holds.
        patched: blob id by path, of the files that the uncommitted patch changes.
    """

    settings: dict[str, Any]
    environment: dict[str, Any]
    patched: dict[str, str]


def resume_run(
    folder: Path,
    overrides: Sequence[str],
    allow_changed: bool,
    trust: Sequence[str] = (),
    online: bool = False,
) -> int:
    """Start a training process that goes on with a run; return its exit status.

    Args:
        trust: packages that classes may come from, beside those of configs/config.yaml.
        online: open addresses that the record names, such as those of loggers.

    Raises:
        InputError: the folder is no run, or what is asked for cannot be.
    """
    recorded = record.read_config(folder)
    untrusted.require_no_way_out(folder)
    request = Request(parse(overrides, recorded), allow_changed)
    settings = with_request(recorded, request)
    trusted = config.require_trusted(settings, folder, trust)
    if trusted != settings.get("trusted_packages"):
        request.settings["trusted_packages"] = trusted
        settings = with_request(recorded, request)
    if settings.get("logger") and not online:
        require_our_loggers(settings, folder, request)
    config.check(settings)
    require_unfinished(folder)
    environment = launch.training_environment(settings) | offline.variables(online)
    return launch.run_worker(settings, folder, environment, request.text())


def parse(overrides: Sequence[str], recorded: DictConfig) -> dict[str, Any]:
    """Read `key=value` words in Hydra's grammar; the keys must be in the configuration."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    from seedbed.config import hydra_errors

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise hydra_errors.explain(error) from None
    values: dict[str, Any] = {}
    for one in parsed:
        known = OmegaConf.select(recorded, one.key_or_group, default=_MISSING)
        if one.is_sweep_override() or one.is_delete() or one.is_add():
            raise InputError(f"{one.input_line}: expected key=value; give one value for one key")
        if one.key_or_group == "logger":
            from seedbed import loggers

            values["logger"] = loggers.choose(one.value(), recorded)
            continue
        if known is _MISSING or isinstance(known, DictConfig):
            raise InputError(
                f"{one.key_or_group}: expected a key of the run's config.yaml with a value of its "
                f"own, got {'a group' if known is not _MISSING else 'a new one'}; see config.yaml"
            )
        values[one.key_or_group] = one.value()
    return values


_MISSING: Any = object()


def require_our_loggers(settings: DictConfig, folder: Path, request: Request) -> None:
    """Raise InputError for loggers that are not as configs/logger or the request says.

    They would write, and send what the run logs, where the record likes.
    """
    from seedbed import loggers  # a part that can be deleted

    try:
        ours = record.flatten({"logger": loggers.choose(list(settings.logger), settings)})
    except (InputError, TypeError):  # none of ours, or no loggers at all
        ours = {}
    plain: Any = OmegaConf.to_container(settings)
    for key, value in record.flatten({"logger": plain["logger"]}).items():
        if value != ours.get(key, _MISSING) and key not in request.settings:
            raise InputError(
                f"{folder}: expected loggers as configs/logger has them, got {key}={value} in the "
                f"record; name it on the command line, or {offline.ADVICE}"
            )


def with_request(recorded: DictConfig, request: Request) -> DictConfig:
    """Return a configuration with the values that were asked for."""
    settings = OmegaConf.create(OmegaConf.to_container(recorded))
    assert isinstance(settings, DictConfig)
    for key, value in request.settings.items():
        OmegaConf.update(settings, key, value, merge=False, force_add=True)
    return settings


def require_unfinished(folder: Path) -> dict[str, Any]:
    """Return the summary of a run that can go on: {} if it was killed before it wrote one."""
    if not (folder / "summary.json").exists():
        return {}
    summary = record.read_summary(folder)
    if summary.get("status") == "finished":
        raise InputError(
            f"{folder}: expected a run to resume with, got one that finished; start another by "
            "train.py, or repeat this one by scripts/verify.py"
        )
    return summary


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run got as far as its first checkpoint."""
    return any((folder / "checkpoints" / name).exists() for name in record.LAST_CHECKPOINTS)


def changes(before: Origin, now: Origin) -> list[Change]:
    """Return what differs in configuration, environment and code, in this order."""
    return [
        *_differing(record.flatten(before.settings), record.flatten(now.settings), neutral.KEYS),
        *_differing(_environment(before), _environment(now), neutral.ENVIRONMENT),
        *_code_changes(before, now),
    ]


def require_equal(found: Sequence[Change], step: int) -> None:
    """Raise InputError if something changed that can alter bits."""
    serious = [str(change) for change in found if change.alters_bits]
    if serious:
        more = f" and {len(serious) - 3} more" if len(serious) > 3 else ""
        raise InputError(
            f"determinism=strict: expected what step {step} was made with, got "
            f"{', '.join(serious[:3])}{more}; undo it, or resume all the same with --allow-changed"
        )


def entry(step: int, found: Sequence[Change]) -> dict[str, Any]:
    """Return what summary.json says of a resume (`record.altered` reads it)."""
    return {
        "step": step,
        "changes": {c.key: [c.before, c.now] for c in found},
        "can_alter_bits": [c.key for c in found if c.alters_bits],
    }


def remove_leftovers(folder: Path) -> None:
    """Remove what a process that was killed was just writing."""
    for place in (folder, folder / "checkpoints"):
        for path in (*place.glob(".*.tmp"), *place.glob(".*.new")):
            path.unlink(missing_ok=True)


def _differing(
    before: Mapping[str, Any], now: Mapping[str, Any], patterns: Sequence[str]
) -> Iterator[Change]:
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            yield Change(key, before.get(key), now.get(key), not neutral.matches(key, patterns))


def _environment(origin: Origin) -> dict[str, Any]:
    """Leave out what git and torchrun say, and of the platform all but the C library."""
    kept = {key: value for key, value in origin.environment.items() if key != "git"}
    kept["platform"] = str(kept.get("platform")).rpartition("-with-")[2]
    flat = record.flatten(kept)
    return {key: flat[key] for key in flat if not neutral.matches(key, neutral.TORCHRUN)}


def _code_changes(before: Origin, now: Origin) -> Iterator[Change]:
    """Yield the commit, which alone alters bits if git does not know it, and files that differ."""
    commits = [origin.environment["git"]["commit"] for origin in (before, now)]
    trees = [_files(origin) for origin in (before, now)]
    if commits[0] != commits[1]:
        yield Change("git.commit", commits[0], commits[1], alters_bits=None in trees)
    if trees[0] is not None and trees[1] is not None:
        for change in _differing(trees[0], trees[1], ()):
            yield replace(change, alters_bits=neutral.may_be_imported(change.key))
    known = {path for tree in trees for path in tree or ()}
    for change in _differing(_lacking(before), _lacking(now), ()):
        path = change.key.removeprefix(_LACKS)
        yield replace(change, alters_bits=neutral.may_be_imported(path) or path in known)


def _files(origin: Origin) -> dict[str, str] | None:
    """Return the short blob id of each file of the code; None if git does not have the commit."""
    commit = origin.environment["git"]["commit"]
    found = source.recorded_files(source.project_root(), commit, origin.patched)
    return None if found is None else {path: blob[:12] for path, blob in found.items()}


def _lacking(origin: Origin) -> dict[str, str]:
    """Return what the record says of code that it lacks, by path."""
    lacks = origin.environment["git"].get("lacks") or {}
    return {f"{_LACKS}{path}": reason for path, reason in lacks.items()}


_LACKS = "git.lacks."
