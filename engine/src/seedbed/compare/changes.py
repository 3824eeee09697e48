"""What differs between two records: settings, environment and code."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from seedbed.compare.difference import Record
from seedbed.record import code
from seedbed.record.change import NEUTRAL_ENVIRONMENT, NEUTRAL_KEYS, TORCHRUN, Change, matches

# Where a run lies and when it ran changes no bit; data and files are known by their digests.
_PLACES = {
    "date", "dir", "directory", "file", "folder", "home", "host", "hostname", "mirrors", "path",
    "paths", "pid", "pwd", "root", "time", "tmpdir", "user",
}  # fmt: skip
_LOOKS_LIKE_A_PLACE = re.compile(r"(/|~|\.\.?/|file:)")
# Whatever these are called, they are arguments: model.drop_path, optimizer.time.
_ARGUMENTS = ("model.", "optimizer.", "schedule.", "files_sha256.")
# What a run writes down and how often, beside what NEUTRAL_KEYS has.
_RECORDED = (
    *("fingerprint.*", "hydra.*", "objective"),
    *("trainer.log_every_steps", "trainer.checkpoint_every_steps"),
)
# Settings that take the value of another one unless they are given their own.
_FOLLOWERS = (
    ("seeds.*", "seed"),
    ("data.*.seed", "seeds.split"),
    ("determinism.env.*_NUM_THREADS", "determinism.threads"),
    ("cpu.threads", "determinism.threads"),
    ("flags.threads", "determinism.threads"),
    ("env.*_NUM_THREADS", "determinism.threads"),
    ("trainer.device", "determinism.device"),
    ("model.outputs", "data.outputs"),
)


def changes(a: Record, b: Record) -> list[Change]:
    """Return what differs between two records: seeds, other settings, environment, code.

    What torchrun tells its processes is left out: it differs each time.
    """
    digests = [
        {key: value for key, value in r.environment.items() if key.startswith("data_sha256")}
        for r in (a, b)
    ]
    same_data = digests[0] == digests[1] and any(digests[0].values())
    settings = _differing(a.config, b.config, "configuration", same_data)
    settings.sort(key=lambda change: not change.key.startswith("seed"))
    environment = _differing(a.environment, b.environment, "environment", same_data)
    return [*settings, *environment, *code.changes(a.code, b.code, a.config == b.config)]


def _differing(
    a: Mapping[str, object], b: Mapping[str, object], kind: str, same_data: bool
) -> list[Change]:
    return [
        Change(key, a.get(key), b.get(key), _may_alter_bits(key, a, b, same_data), kind)
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key) and not matches(key, TORCHRUN)
    ]


def _may_alter_bits(
    key: str, a: Mapping[str, object], b: Mapping[str, object], same_data: bool
) -> bool:
    """Return whether a setting or an entry of the environment can alter bits.

    Args:
        same_data: both records hold the same digests of the training data, wherever it lies.
    """
    if matches(key, (*NEUTRAL_KEYS, *NEUTRAL_ENVIRONMENT, *_RECORDED)):
        return False
    values = [str(each.get(key)) for each in (a, b)]
    is_place = not key.startswith(_ARGUMENTS) and (
        key.lower().rpartition(".")[2] in _PLACES or any(map(_LOOKS_LIKE_A_PLACE.match, values))
    )
    held_out = key.startswith(("data.validation", "data.test"))
    return not is_place or (key.startswith("data.") and (held_out or not same_data))


def leading(found: Sequence[Change]) -> list[Change]:
    """Return changes without those that follow from another one, as seeds of streams do."""
    settings = {each.key: each for each in found if each.kind == "configuration"}
    return [each for each in found if not _follows(each, settings)]


def _follows(change: Change, settings: Mapping[str, Change]) -> bool:
    """Return whether a setting brought a change along, such as a flag that was asked for."""
    section, _, rest = change.key.partition(".")
    asked_for = {"flags": f"determinism.{rest}", "env": f"determinism.env.{rest}"}.get(section)
    if asked_for in settings:
        return True
    values = (str(change.before), str(change.now))
    return any(
        fnmatchcase(change.key, follower)
        and leader in settings
        and values == (str(settings[leader].before), str(settings[leader].now))
        for follower, leader in _FOLLOWERS
    )
