"""What can explain a difference: changes of configuration, environment and code, ranked."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase

from seedbed import config, names
from seedbed.compare.difference import Difference, Record
from seedbed.compare.stages import STAGES, stage_of
from seedbed.errors import printable
from seedbed.record import code
from seedbed.record.change import NEUTRAL_ENVIRONMENT, TORCHRUN, Change, matches

_MOST_CHARACTERS = 44

# Where a run lies and when it ran changes no bit; what lies there is known by its digest.
_PLACES = {
    "date", "dir", "directory", "file", "finished", "folder", "home", "host", "hostname", "mirrors",
    "path", "paths", "pid", "pwd", "root", "seconds", "started", "time", "tmpdir", "user",
}  # fmt: skip
_LOOKS_LIKE_A_PLACE = re.compile(r"(/|~|\.\.?/|file:)")
# Whatever these are called, they are arguments: model.time_steps, model.drop_path.
_ARGUMENTS = ("model.", "optimizer.", "schedule.")
# What config.yaml holds beside the settings of a loop of one's own.
_SECTIONS = {each.name for each in fields(config.Settings)} | {"hydra", "logger", "recorder"}
_FILES = "files_sha256."  # by path; what differs is their content
# Settings that follow another one, unless somebody gives them a value of their own.
_FOLLOWERS = (
    ("seeds.*", "seed"),
    ("data.*.seed", "seeds.split"),
    ("determinism.env.*_NUM_THREADS", "determinism.threads"),
    ("cpu.threads", "determinism.threads"),
    ("trainer.device", "determinism.device"),
    ("model.outputs", "data.outputs"),
)


def changes(a: Record, b: Record) -> list[Change]:
    """Return everything that differs in configuration, environment and code, by key.

    What torchrun tells its processes is left out: it differs each time.
    """
    sides = (("configuration", a.config, b.config), ("environment", a.environment, b.environment))
    digests = [
        {k: v for k, v in r.environment.items() if k.partition(".")[0] == "data_sha256"}
        for r in (a, b)
    ]
    same_data = digests[0] == digests[1] and any(digests[0].values())
    found = [
        Change(key, before.get(key), now.get(key), kind=kind)
        for kind, before, now in sides
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not matches(key, TORCHRUN)
    ]
    found = [replace(each, alters_bits=_may_alter_bits(each, same_data)) for each in found]
    return [*found, *code.changes(a.code, b.code, a.config == b.config)]


def rank(difference: Difference, found: Iterable[Change]) -> list[Change]:
    """Return the changes that can explain a difference, likeliest first.

    Settings and the environment come before code; code that neither training process imported is
    left out. A setting that follows another one is not named beside it. Where fingerprints do not
    tell in which stage the difference arose, the causes of the other stages follow those of the one
    that was seen. Where data lies comes last: other folders can hold other data. Nobody knows where
    a setting of a loop of one's own acts, so these follow. If nothing is known to act on the stage,
    any argument of a class can.
    """
    found = list(found)
    known = _known_causes(difference, found)
    open_sections = () if known else (*_ARGUMENTS, "data.")
    return known + [
        change
        for change in found
        if (_is_of_own_loop(change) or change.key.startswith(open_sections))
        and change not in known
        and change.alters_bits
        and _leader(change, found) is change
    ]


def _is_of_own_loop(change: Change) -> bool:
    """Return whether a setting is none of train.py's, so that nobody knows where it acts."""
    section = change.key.partition(".")[0]
    return change.kind == "configuration" and section not in _SECTIONS


def _known_causes(difference: Difference, found: Sequence[Change]) -> list[Change]:
    """Return the changes that are known to act where a difference was seen."""
    keys = stage_of(difference.stage).keys
    if not difference.located:
        keys += tuple(key for stage in names.STAGES for key in STAGES[stage].keys)
    if difference.equal_through is not None:  # weights that were equal once began equal
        keys = tuple(key for key in keys if key != "seeds.init")
    ranked: dict[str, tuple[tuple[bool, bool, int], Change]] = {}
    for change in found:
        place = next((n for n, key in enumerate(keys) if _fits(change, key)), None)
        if place is None or not change.alters_bits:
            continue
        cause = _leader(change, found)
        order = (_is_place(change), change.kind == "code", place)
        ranked[cause.key] = (min(order, ranked.get(cause.key, (order,))[0]), cause)
    return [ranked[key][1] for key in sorted(ranked, key=lambda key: (ranked[key][0], key))]


def _leader(change: Change, found: Sequence[Change]) -> Change:
    """Return the setting that a change follows from, or the change itself."""
    settings = {each.key: each for each in found if each.kind == "configuration"}
    asked_for = settings.get(_asked_for(change) or "")
    if asked_for is not None:
        return _leader(asked_for, found)
    for follower, leader in _FOLLOWERS:
        above = settings.get(leader)
        if above is not None and fnmatchcase(change.key, follower) and _same(above, change):
            return above
    return change


def others(found: Sequence[Change], likely: Sequence[Change] = ()) -> list[Change]:
    """Return the changes beside the likely causes, without those that follow from another one.

    Files that no training process imported are left out, too.
    """
    unused = [each for each in found if each.kind == "code" and not each.alters_bits]
    unused = [each for each in unused if not each.key.startswith("git.")]
    apart = [*likely, *unused]
    return [each for each in found if each not in apart and _leader(each, found) is each]


def describe(difference: Difference) -> Iterator[str]:
    """Yield a few lines: where two records diverge, and what that means."""
    stage = stage_of(difference.stage)
    yield f"step {difference.step}: {stage.name} ({stage.phase})"
    yield f"  A {difference.a or '(none)'}"
    yield f"  B {difference.b or '(none)'}"
    equal = ", ".join(stage_of(name).name for name in difference.equal_stages)
    through = difference.equal_through
    same = [] if through is None else [f"all steps compared up to {through}"]
    same += [f"at step {difference.step} {equal}"] if equal else []
    yield f"  equal before it: {'; '.join(same)}" if same else f"  {_beginning(difference)}"
    yield f"  look at: {stage.look}"
    if not difference.located:
        yield (
            "  not every step before it has fingerprints in both, so the difference may be older, "
            "and of another stage; run both with fingerprint.every_steps=1 to know"
        )


def _beginning(difference: Difference) -> str:
    """Return what there is before a difference of which nothing before it was compared."""
    if difference.step > 1:
        return "nothing before it was compared"
    if difference.stage == names.STAGES[0]:
        return "nothing comes before it: it is the first stage of the run's first step"
    return "it is in the run's first step, and no stage before it was compared"


def explain(difference: Difference, found: Iterable[Change]) -> Iterator[str]:
    """Yield lines: where two records diverge, and what explains it, likeliest first."""
    yield from describe(difference)
    found = list(found)
    likely = rank(difference, found)
    if likely:
        if _known_causes(difference, found):
            yield "\nLikely causes, likeliest first"
        else:
            yield "\nNothing that is known to act there differs; these settings do"
        yield from table(likely)
    else:
        yield (
            "\nNothing recorded explains it: a nondeterministic operation (determinism=strict "
            "refuses those), or a random number that belongs to no stream"
        )


def table(found: Iterable[Change]) -> Iterator[str]:
    """Yield changes side by side, aligned."""
    cells = [
        ("", "A", "B"),
        *((_short(c.key, 160), _short(c.before), _short(c.now)) for c in found),
    ]
    widths = [max(len(row[column]) for row in cells) for column in (0, 1)]
    for key, a, b in cells:
        yield f"  {key:{widths[0]}}  {a:{widths[1]}}  {b}"


def in_words(change: Change) -> str:
    """Return what differs as a phrase that fits over a picture."""
    if change.kind == "code":
        return f"{_short(change.key, 60)} is not the same in A and B"
    before, now = (_short(each, 24) for each in (change.before, change.now))
    return f"{_short(change.key, 40)}: {before} in A, {now} in B"


def _short(value: object, most: int = _MOST_CHARACTERS) -> str:
    text = "-" if value is None else " ".join(str(value).split())
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _fits(change: Change, pattern: str) -> bool:
    is_file = change.kind == "code" and not change.key.startswith("git.")
    return fnmatchcase(f"code:/{change.key}" if is_file else change.key, pattern)


def _asked_for(change: Change) -> str | None:
    """Return the setting that an entry of the environment follows from."""
    kind, _, rest = change.key.partition(".")
    return {"flags": f"determinism.{rest}", "env": f"determinism.env.{rest}"}.get(kind)


def _same(one: Change, other: Change) -> bool:
    return (str(one.before), str(one.now)) == (str(other.before), str(other.now))


def _may_alter_bits(change: Change, same_data: bool) -> bool:
    """Return whether a setting or an entry of the environment can alter bits.

    Args:
        same_data: both records hold the same digest of the training data.
    """
    if change.kind == "environment":
        return not matches(change.key, NEUTRAL_ENVIRONMENT) and not _is_place(change)
    if change.key == "determinism.fingerprint_every_steps":
        return False
    held_out = change.key.startswith(("data.validation", "data.test"))
    is_known = same_data and not held_out
    return not _is_place(change) or (change.key.startswith("data.") and not is_known)


def _is_place(change: Change) -> bool:
    if change.kind == "code" or change.key.startswith((*_ARGUMENTS, _FILES)):
        return False
    named = change.key.lower().rpartition(".")[2] in _PLACES
    return named or any(
        _LOOKS_LIKE_A_PLACE.match(str(value)) for value in (change.before, change.now)
    )
