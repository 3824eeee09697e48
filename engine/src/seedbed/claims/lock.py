"""What a claim fixes before its runs: claim.lock.json beside claim.yaml.

    {"format_version": 1, "digest": ...,
     "fixed": {"claim": ..., "variants": ..., "code": ...}}

The digest is the SHA-256 of `fixed` as JSON with sorted keys and without spaces: of the
claim, and for each variant its commit, its composed settings, the seeds of its streams,
and the digests of its code and of the files that its settings name. Each run of the
claim has the digest in its settings, and in plan.json before step 1. So neither the
claim nor the lock can be changed after the first run without losing it.
"""

import itertools
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import OmegaConf

from seedbed import config, project, record
from seedbed.claims import claim as claims
from seedbed.claims.claim import Claim, Variant
from seedbed.config import compose
from seedbed.errors import InputError
from seedbed.launch import folders
from seedbed.record import change, code, files, text, untrusted
from seedbed.sweeps import differences, groups, statistics
from seedbed.sweeps.groups import Group, SweepRun
from seedbed.sweeps.plan import Plan

SUFFIX = ".lock.json"
SEED = "seed"  # in the place of seeds that are the run's
_VERSION = 1
_TYPES: untrusted.Types = {
    "claim": (dict,),
    "variants": (dict, dict),
    "code": (dict, dict),
}
_OF_VARIANT: untrusted.Types = {
    "commit": (str,),
    "settings": (dict,),
    "seeds": (dict,),
    "data": (dict,),
}
# Callbacks change no bit of the weights, but may change a validation value.
_FREE = tuple(key for key in change.NEUTRAL_KEYS if key != "callbacks.*")
_TWO_SEEDS = (1, 2)  # of compositions that show which values follow the seed


@dataclass(frozen=True)
class Fixed:
    """What a claim fixes of a variant."""

    commit: str | None
    settings: Mapping[str, Any]  # by dotted key, without seeds
    seeds: Mapping[str, Any]  # SEED for the run's own
    data: Mapping[str, str]  # digests of files and folders that settings name
    code: Mapping[str, str]  # SHA-256 by name in code.zip


@dataclass(frozen=True)
class Lock:
    """A claim, and what it fixes."""

    claim: Claim
    digest: str
    variants: Mapping[str, Fixed]

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The planned seeds, in their order."""
        if isinstance(self.claim.seeds, tuple):
            return self.claim.seeds
        drawn = (
            int(code.sha256(f"{self.digest},{number}".encode())[:8], 16)
            for number in itertools.count()
        )
        seeds = dict[int, None]()
        while len(seeds) < self.claim.seeds:
            seeds[next(drawn)] = None
        return tuple(seeds)

    @property
    def folder(self) -> Path:
        """The folder of the claim's sweeps, relative to the project."""
        return Path("sweeps", f"{self.claim.path.stem}-{self.digest[:12]}")


def path_of(claim: Path) -> Path:
    return claim.with_name(claim.stem + SUFFIX)


def fix(path: Path, trust: Sequence[str] = ()) -> Lock:
    """Fix a claim in this checkout and write its lock, unless that is there.

    Raises InputError if code is not committed, a variant cannot be composed, or names
    classes that neither configs/ nor `trust` names, or values of the variants could not
    be compared.
    """
    claim = claims.read(path)
    checkout = project.root().absolute()
    git, _ = code.git_state(checkout)
    if git["dirty"]:
        raise InputError(
            f"{checkout}: expected a checkout in which all code and configuration"
            " is committed, got changes; git commit them, and the claim"
        )
    content = _content(claim, checkout, git["commit"], trust)
    made = _lock(claim, content)
    _require_comparable(made)
    lock_path = path_of(path)
    if lock_path.exists():
        return _same(read(path), made, lock_path)
    entries = {"format_version": _VERSION, "digest": made.digest, "fixed": content}
    try:
        record.write_json(lock_path, entries)
    except OSError as error:
        raise InputError(
            f"{lock_path}: expected a writable file, got {error.strerror}"
        ) from None
    return made


def _content(
    claim: Claim, checkout: Path, head: str | None, trust: Sequence[str]
) -> dict[str, Any]:
    """Return what a claim fixes, in a checkout whose commit is `head`."""
    variants = dict[str, Any]()
    of_commits = dict[str, Any]()
    for variant in claim.variants:
        commit = head
        if variant.commit is not None:
            commit = code.commit_of(checkout, variant.commit)
        with (
            _checked_out(checkout, variant, commit) as root,
            project.at(root),
            chdir(checkout),
        ):
            composed = _composed(claim, variant, trust)
            variants[variant.name] = {"commit": commit, **composed}
            # A name of its own, or what is checked out here, which is committed.
            names = code.tracked(checkout, commit if variant.commit else None)
            digests = code.digests_of_project(root, names)
            of_commits.setdefault(str(commit), digests)
    content = {"claim": claim.canonical(), "variants": variants, "code": of_commits}
    fixed: dict[str, Any] = json.loads(text.as_json(content))
    return fixed


def _same(before: Lock, after: Lock, path: Path) -> Lock:
    """Return a lock that is there, if the claim fixes the same now; a commit may
    follow."""
    several = [
        [replace(fixed, commit=None) for fixed in lock.variants.values()]
        for lock in (before, after)
    ]
    if several[0] != several[1]:
        raise InputError(
            f"{path}: expected the claim that it has fixed, with the same code, got"
            " another; write a new claim in a file of another name"
        )
    return before


@contextmanager
def _checked_out(root: Path, variant: Variant, commit: str | None) -> Iterator[Path]:
    """Yield the project's folder, or a temporary one with the code of the variant's
    commit."""
    if commit is None or variant.commit is None:
        yield root
        return
    with TemporaryDirectory(prefix="seedbed-claim-") as folder:
        code.extract_commit(root, commit, Path(folder))
        yield Path(folder)


def _composed(
    claim: Claim, variant: Variant, trust: Sequence[str] | None
) -> dict[str, Any]:
    """Return the settings, seeds and data of a variant, composed as train.py does.

    Paths of data are relative to the current folder. Without `trust`, nothing is said
    about classes, as nothing will run.
    """
    words = (*claim.settings, *variant.settings)
    compose.parse(words)
    prefix = f"{claim.path}: variants.{variant.name}"
    several = []
    for seed in _TWO_SEEDS:
        try:
            settings = compose.configuration(*words, f"seed={seed}")
            if trust is not None:
                _require_trusted(settings.plain, claim.path, trust)
        except InputError as error:
            raise InputError(f"{prefix}: {error}") from None
        tree = untrusted.parse_yaml(folders.require_readable(settings))
        several.append(groups.without_seeds(tree))
    (one, seeds), (other, others) = several
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            raise InputError(
                f"{prefix}: {key}: expected a value that does not depend on the seed,"
                f" got {text.show(one.get(key))} and {text.show(other.get(key))}"
            )
    follows = {}
    for key, value in seeds.items():
        if (value, others.get(key)) not in (_TWO_SEEDS, (value, value)):
            raise InputError(
                f"{prefix}: {key}: expected the seed, or one of all runs, got {value}"
                f" and {others.get(key)}"
            )
        follows[key] = value if others[key] == value else SEED
    return {
        "settings": settings_of(one),
        "seeds": follows,
        "data": files.named_in(settings.plain),
    }


def _require_trusted(
    settings: Mapping[str, Any], path: Path, trust: Sequence[str]
) -> None:
    """Raise InputError for classes and variables that no file of configs/ names: the
    claim may be a stranger's, and its commands would run them."""
    composed = OmegaConf.create({**settings, "logger": {}})  # which no claim sets
    config.require_trusted(composed, path, trust)


def not_composed(lock: Lock) -> Iterator[str]:
    """Yield a line for each variant whose locked settings are not those that the claim
    composes here.

    A lock can be written by hand, with a digest that fits. Variants whose code is not
    at hand are left out.
    """
    checkout = project.root().absolute()
    is_here = not other_code(lock)
    for variant in lock.claim.variants:
        fixed = lock.variants[variant.name]
        if not (
            is_here if variant.commit is None else _is_known(checkout, fixed.commit)
        ):
            continue
        commit = fixed.commit
        with (
            _checked_out(checkout, variant, commit) as root,
            project.at(root),
            chdir(checkout),
        ):
            composed = json.loads(text.as_json(_composed(lock.claim, variant, None)))
        for name, locked in (("settings", fixed.settings), ("seeds", fixed.seeds)):
            for key in sorted(composed[name].keys() | locked.keys()):
                if composed[name].get(key) != locked.get(key):
                    yield (
                        f"{path_of(lock.claim.path)}: {variant.name}: {key}: expected"
                        f" {_short(composed[name].get(key))}, as the claim composes,"
                        f" got {_short(locked.get(key))}"
                    )


def _is_known(root: Path, commit: str | None) -> bool:
    with suppress(InputError):
        return commit is not None and bool(code.commit_of(root, commit))
    return False


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a claim fixes: all but those of how a run is executed
    and recorded."""
    return {
        key: value for key, value in config.items() if not change.matches(key, _FREE)
    }


def read(path: Path) -> Lock:
    """Read a claim and its lock; raise InputError unless they belong together."""
    claim = claims.read(path)
    lock_path = path_of(path)
    if not lock_path.is_file():
        raise InputError(
            f"{lock_path}: expected what the claim has fixed, got no file;"
            f" scripts/claim.py new {path}"
        )
    entries = untrusted.read_json(lock_path)
    version = entries.get("format_version")
    content = entries.get("fixed")
    if version != _VERSION or not isinstance(content, dict):
        raise InputError(
            f"{lock_path}: expected the lock of a claim, of format {_VERSION}, got"
            " another"
        )
    stated = content.get("claim")
    for key, value in claim.canonical().items():
        fixed = stated.get(key) if isinstance(stated, dict) else None
        if _canonical(value) != _canonical(fixed):
            raise InputError(
                f"{path}: {key}: expected {_short(fixed)}, as the claim has fixed, got"
                f" {_short(value)}; undo that, or write a new claim in another file"
            )
    made = _lock(claim, content, lock_path)
    if entries.get("digest") != made.digest:
        raise InputError(
            f"{lock_path}: expected the content of which it has the digest, got an"
            " edited one; undo that"
        )
    _require_comparable(made)
    return made


def _lock(claim: Claim, content: Mapping[str, Any], path: Path = Path()) -> Lock:
    untrusted.require_types(path, content, _TYPES)
    variants = content.get("variants") or {}
    of_commits = content.get("code") or {}
    fixed = dict[str, Fixed]()
    for variant in claim.variants:
        entries = variants.get(variant.name) or {}
        untrusted.require_types(path, entries, _OF_VARIANT)
        settings, seeds, data = (
            entries.get(name) or {} for name in ("settings", "seeds", "data")
        )
        commit = entries.get("commit")
        digests_of_code = of_commits.get(str(commit)) or {}
        digests = [
            {str(k): str(v) for k, v in entry.items()}
            for entry in (data, digests_of_code)
        ]
        fixed[variant.name] = Fixed(commit, settings, seeds, *digests)
    return Lock(claim, code.sha256(_canonical(content).encode()), fixed)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _short(value: Any) -> str:
    shown = text.as_json(value, indent=None)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _require_comparable(lock: Lock) -> None:
    """Raise InputError for variants without equal bits, or whose values cannot be
    compared."""
    path = lock.claim.path
    base, *others = lock.variants
    for name, fixed in lock.variants.items():
        preset = fixed.settings.get("determinism.on_nondeterministic")
        if not config.promises_bits(preset):
            raise InputError(
                f"{path}: variants.{name}: expected a preset that promises bits, as"
                " else a seed could be trained until it gives what one wants, got"
                f" determinism={fixed.settings.get('determinism.name')}"
            )
    least = statistics.least_pairs(lock.claim.confidence)
    if lock.claim.rule == claims.SEQUENTIAL and len(lock.seeds) < least:
        raise InputError(
            f"{path}: seeds: expected {least} or more, as {claims.SEQUENTIAL} decides"
            f" no fewer, got {len(lock.seeds)}"
        )
    first = lock.variants[base]
    for name in others:
        fixed = lock.variants[name]
        for key in sorted(first.seeds.keys() & fixed.seeds.keys()):
            if first.seeds[key] != fixed.seeds[key]:
                raise InputError(
                    f"{path}: variants.{name}: {key}: expected"
                    f" {first.seeds[key]} as {base}, got {fixed.seeds[key]}"
                )
        for other, before in lock.variants.items():
            if other == name:
                break
            if (before.settings, before.code) == (fixed.settings, fixed.code):
                raise InputError(
                    f"{path}: variants.{name}: expected other settings or other code"
                    f" than {other}, got the same"
                )
        a, b = (planned(lock, each) for each in (base, name))
        reasons = differences.other_values(a, b, differences.between(a, b))
        for reason in reasons:
            raise InputError(
                f"{path}: variants.{name}: expected values that can be compared with"
                f" {base}, got {reason}"
            )


def planned(lock: Lock, name: str) -> Group:
    """Return the group of a variant before it has runs."""
    settings = lock.variants[name].settings
    run = SweepRun(name, Path(name), "planned", settings)
    direction = lock.claim.higher_is_better
    return Group(name, [], [run], lock.claim.metric, Plan(), direction=direction)


def commands(lock: Lock, variant: Variant, seeds: Sequence[int] = ()) -> list[str]:
    """Return the commands that train a variant, for a shell in the project's root.

    One with a commit of its own is trained in a checkout of that commit.
    """
    sweep_folder = lock.folder / variant.name
    python = "python"
    if variant.commit is not None:
        sweep_folder = project.root().absolute() / sweep_folder
        python = sys.executable
    asked = ",".join(map(str, seeds or lock.seeds))
    words = [*lock.claim.settings, *variant.settings, f"claim={lock.digest}"]
    folder_word = f"hydra.sweep.dir={text.quoted(sweep_folder)}"
    train = shlex.join([python, "train.py", "-m", f"seed={asked}", *words, folder_word])
    if variant.commit is None:
        return [train]
    checkout = f"../{lock.folder.name}-{variant.name}"
    commit = str(lock.variants[variant.name].commit)
    return [
        shlex.join(["git", "worktree", "add", "--detach", checkout, commit]),
        f"(cd {shlex.quote(checkout)} && {train})",
    ]


def other_code(lock: Lock) -> list[str]:
    """Return the files of this checkout that are not as the claim has fixed them, for
    variants without a commit of their own."""
    current = code.digests_of_project(names=code.tracked(project.root()))
    known = [
        lock.variants[variant.name].code
        for variant in lock.claim.variants
        if not variant.commit
    ]
    names = {name for each in known for name in {**current, **each}}
    return [n for n in sorted(names) if any(e.get(n) != current.get(n) for e in known)]
