"""The page in an archive of runs that tells its reader what to do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from seedbed.compare import Record
from seedbed.errors import printable
from seedbed.record import chain

_MOST_FILES = 50
_TEXT = """# {name}

Training runs, recorded so that others can repeat them bit for bit. Nothing needs to be
unpacked.

1. Get the code: the commit below, or `code.zip` of the run. Install its packages by
   `make install`; another version of PyTorch may give other bits.
2. Put the data where the table says, or change nothing if they are in the code.
3. In the folder of the code:

```bash
python scripts/verify.py {archive} --sample 10 --challenge TEXT    # 10 segments
python scripts/verify.py {archive}                                 # all steps, results
python scripts/evaluate.py {archive}                               # the saved weights
```

`TEXT` is a value that nobody could know before this archive was published, such as the
next one of a public random beacon. Classes that no file of your `configs/` names need
`--trust NAME`. `--restore-code` runs the code of the record itself, which is another
person's. `docs/proof.md` says what all this proves, and what it does not.

"""


class Published(Protocol):
    """What the page says of a run."""

    @property
    def name(self) -> str: ...
    @property
    def recorded(self) -> Record: ...
    @property
    def steps(self) -> Sequence[int]: ...


def of(runs: Sequence[Published], name: str, left_out: Sequence[str] = ()) -> str:
    """Return the page of an archive with some runs; others failed before step 1."""
    archive = "FILE.zip" if len(runs) == 1 else f"FILE.zip/{runs[0].name}"
    lines = [line for run in runs for line in _of_run(run)]
    if left_out:
        lines.append(f"Failed before step 1: {', '.join(left_out)}.")
    text = _TEXT.format(name=printable(name), archive=printable(archive))
    return text + "\n".join(map(printable, lines)) + "\n"


def _of_run(run: Published) -> Iterator[str]:
    """Yield the lines on a run: results, machine, data and chain."""
    recorded = run.recorded
    environment = recorded.origin.environment
    summary = recorded.summary
    versions = _mapping(environment.get("versions"))
    cpu = _mapping(environment.get("cpu"))
    gpus = environment.get("gpu") or []
    yield f"## {run.name}"
    yield ""
    yield f"- status: {summary.get('status')}, {summary.get('steps')} steps"
    for key, value in _mapping(summary.get("metrics")).items():
        yield f"- {key}: {value}"
    yield f"- preset: determinism={recorded.config.get('determinism.name')}"
    yield f"- seed: {recorded.config.get('seed')}"
    yield f"- Python {versions.get('python')}, torch {versions.get('torch')}"
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping)]
    yield f"- processor: {', '.join(names) or cpu.get('model')}"
    yield f"- commit: {recorded.origin.commit}"
    if recorded.origin.folder is not None:
        rows = [*chain.checkpoints(recorded.origin.folder).values()]
        if rows:
            yield f"- last digest of {chain.FILE}: {rows[-1]['digest']}"
    yield f"- kept checkpoints here: {', '.join(map(str, run.steps)) or 'none'}"
    yield ""
    yield from _data(environment)


def _data(environment: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the files that a run read, and their digests."""
    stated = environment.get("data_sha256")
    known = {
        **(stated if isinstance(stated, Mapping) else {"data set": stated}),
        **_mapping(environment.get("files_sha256")),
    }
    rows = {str(key): str(value) for key, value in known.items() if value}
    if not rows:
        yield "No data outside the code are recorded."
    else:
        yield "| data | SHA-256 |"
        yield "| --- | --- |"
    for key, value in [*rows.items()][:_MOST_FILES]:
        yield f"| {key} | {value} |"
    if len(rows) > _MOST_FILES:
        yield f"| {len(rows) - _MOST_FILES} more | in environment.json |"
    yield ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
