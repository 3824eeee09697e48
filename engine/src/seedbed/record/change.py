"""Differences between two records, or since a checkpoint, and whether they can alter
bits."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from seedbed.names import flatten
from seedbed.record.code import Origin
from seedbed.record.observers import observing

# Settings of how a run is executed and recorded, which do not change any bit of its
# results.
NEUTRAL_KEYS = (
    "data.num_workers",
    "data.persistent_workers",
    "data.prefetch_factor",
    "data.start_method",
    "data.compare_splits",
    "trainer.processes",
    "trainer.sharding",
    "trainer.shard_modules",
    "trainer.distributed_timeout_seconds",
    "trainer.log_every_steps",
    "trainer.checkpoint_every_steps",
    "trainer.keep_checkpoint_every_steps",
    "trainer.keep_best",
    "trainer.rehearse_resume",
    "trainer.replay_every_steps",
    "trainer.in_process",
    "trainer.detect_anomaly",
    "trainer.profile_steps",
    "fingerprint.*",
    "determinism.fingerprint_every_steps",
    "hydra.*",
    "objective",
    "tags",
    "notes",
    "claim",
    "logger.*",
    "callbacks.*",
)
# Location of the training data: neutral if its digests are recorded and equal.
DATA_PLACES = (
    "data.root",
    "data.mirrors",
    "data.dataset.root",
    "data.dataset.path",
    "data.train.root",
    "data.train.path",
)
# Entries of the environment that cannot affect the arithmetic of training: paths, sizes
# of the machine (threads are part of the preset), and the libraries that compose
# configurations.
NEUTRAL_ENVIRONMENT = (
    "cpu.cores",
    "gpu.*.memory_bytes",
    "processes.count",
    "versions.hydra-core",
    "versions.omegaconf",
    "env.CUDA_CACHE_PATH",
    "env.CUDA_HOME",
    "env.CUDA_PATH",
    "env.CUDA_VISIBLE_DEVICES",
    "env.GOMP_SPINCOUNT",
    "env.KMP_INIT_AT_FORK",
    "env.NCCL_DEBUG*",
    "env.NVIDIA_DRIVER_CAPABILITIES",
    "env.NVIDIA_REQUIRE_*",
    "env.NVIDIA_VISIBLE_DEVICES",
    "env.OMP_WAIT_POLICY",
    "env.TORCHELASTIC_*",
    "env.TORCHINDUCTOR_CACHE_DIR",
    "operations_replaced",  # so far: it follows from the code and `determinism.replace`
    "files_sha256.* (times)",  # of files in a large folder: copying one sets new times
    "env.TORCH_HOME",
    "env.TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


@dataclass(frozen=True)
class Change:
    """A setting, an entry of the environment or a file that differs between two
    records."""

    key: str
    before: Any  # its value in the first record (A, or the checkpoint's); None: absent
    now: Any
    alters_bits: bool = True  # whether it can alter bits
    kind: str = "configuration"  # or environment, or code

    def __str__(self) -> str:
        return f"{self.key} {self.before} -> {self.now}"


def changes(before: Origin, now: Origin) -> list[Change]:
    """Return the changes in this order: seeds, other settings, environment, code."""
    settings = flatten(before.settings), flatten(now.settings)
    environments = _comparable(before.environment), _comparable(now.environment)
    a, b = (
        {k: v for k, v in each.items() if k.startswith("data_sha")}
        for each in environments
    )
    neutral = (*NEUTRAL_KEYS, *(DATA_PLACES if any(a.values()) and a == b else ()))
    if before.environment.get("device") == now.environment.get("device"):
        # such as `auto`, or another index
        neutral += ("trainer.device", "determinism.device")
    # settings that name the same files in another place, and both names
    moved = list[str]()
    for key, path in settings[0].items():
        one = f"files_sha256.{path}"
        other = f"files_sha256.{settings[1].get(key)}"
        if one != other and environments[0].get(one, 0) == environments[1].get(other):
            moved += [key, one, other]
    of_settings = list(_differing(*settings, "configuration", neutral, moved))
    # Preset values are read back into env.*, flags.* and cpu.*; do not list them twice.
    sections = [change.key.partition(".") for change in of_settings]
    preset = {key for section, _, key in sections if section == "determinism"}
    # Older records lack the interpreter.
    lone = environments[0].keys() ^ environments[1].keys()
    unknown = [key for key in lone if key.startswith("interpreter.")]
    of_environment = _differing(
        *environments, "environment", NEUTRAL_ENVIRONMENT, [*moved, *unknown]
    )
    return [
        *sorted(of_settings, key=lambda change: not change.key.startswith("seed")),
        *(
            c
            for c in of_environment
            if preset.isdisjoint((c.key, c.key.partition(".")[2]))
        ),
        *changes_of_code(before, now),
    ]


def changes_of_code(before: Origin, now: Origin) -> Iterator[Change]:
    """Yield the commit and the imported files that differ.

    A file that only one of them imported may be due to the settings, such as another
    model. It counts only if the settings are the same, or if a file that both imported
    differs.
    """
    a = before.imported
    b = now.imported
    if before.commit != now.commit:
        yield Change("git.commit", before.commit, now.commit, not (a and b), "code")
    if not (a and b):
        return
    shared = [name for name in a if name in b and a[name] != b[name]]
    is_change = shared or before.settings == now.settings
    names = sorted([*shared, *(a.keys() ^ b.keys() if is_change else ())])
    digests = {name: (before.digest(name), now.digest(name)) for name in names}
    differing = [name for name, (one, other) in digests.items() if one != other]
    of_observers = observing(differing, before, now)
    for name in differing:
        one, other = (digest and digest[:12] for digest in digests[name])
        yield Change(name, one, other, name not in of_observers, "code")


def matches(key: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def _differing(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    kind: str,
    neutral: Iterable[str],  # patterns of keys
    harmless: Collection[str],  # keys; they have paths, which are no patterns
) -> Iterator[Change]:
    for key in sorted(before.keys() | now.keys()):
        if repr(before.get(key)) != repr(now.get(key)):  # NaN equals NaN, 1.0 is not 1
            alters_bits = key not in harmless and not matches(key, neutral)
            yield Change(key, before.get(key), now.get(key), alters_bits, kind)


def _comparable(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flattened environment without the code; of the platform, only the C
    library."""
    library = str(recorded.get("platform")).rpartition("-with-")[2]
    return flatten(
        {**recorded, "git": None, "imported_files": None, "platform": library}
    )
