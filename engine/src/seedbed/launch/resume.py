"""Resuming a run: the request is checked before a training process starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import config, launch, record
from seedbed.config import interpolations
from seedbed.errors import InputError
from seedbed.record import untrusted

_MISSING: Any = object()


def resume_run(folder: Path, overrides: Sequence[str], allow_changed: bool) -> int:
    """Resume one of the user's own runs in a training process; return its exit status."""
    recorded = record.read_config(folder)
    untrusted.require_no_way_out(folder)
    values = parse(overrides, recorded)
    values = interpolations.reached(values, recorded, interpolations.read(folder))
    request = config.Request(values, allow_changed)
    settings = request.applied_to(recorded)
    config.check(settings)
    record.require_unfinished(folder, request.settings)
    environment = launch.training_environment(settings)
    return launch.run_worker(settings, folder, environment, request)


def parse(
    overrides: Sequence[str], recorded: DictConfig, free: str | None = None
) -> dict[str, Any]:
    """Return the values of `key=value` overrides, in Hydra's grammar, by key.

    Args:
        free: a section that may get new keys.

    Raises:
        InputError: a key that the run's configuration does not have, a group, or bad syntax.
    """
    from seedbed.config import compose  # imports Hydra

    values: dict[str, Any] = {}
    for one in compose.parse(overrides):
        key = one.key_or_group
        known = OmegaConf.select(recorded, key, default=_MISSING)
        is_new = known is _MISSING and key.partition(".")[0] != free
        if key == "logger":
            # As Hydra composes it; its ${...} refer to the run's own configuration.
            chosen = compose.compose(str(one.input_line)).logger
            own = OmegaConf.create({**recorded, "logger": chosen})
            values[key] = OmegaConf.to_container(own.logger, resolve=True)
        elif is_new or isinstance(known, DictConfig):
            raise InputError(
                f"{key}: expected a key of the run's config.yaml that has a single value, got "
                f"{'a new key' if is_new else 'a group'}"
            )
        else:
            values[key] = one.value()
    return values
