"""The report on a GPU for docs/measured.md, in two parts of at most 270 s on 16 cores.

Each table is printed and written as soon as it is there. A table has a limit of time
and ends with an error at it, as with any other, and the next ones are made.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import gates
import timing
import ways
from programs import baseline, seedbed, table
from timing import Program

from seedbed import record
from seedbed.errors import InputError, one_line

PART_SECONDS = {"cuda": 260, "cpu": 600}  # a trial may take longer than a measurement
TABLE_SECONDS = {"gates": 170, "speed": 50, "compiled": 90}
RAW, STRICT, FAST = "raw loop", "strict", "fast"
# Each as under `fast`; the last ones cost instead of gaining.
SETTINGS = {
    "kernels need not be deterministic": ("determinism.on_nondeterministic=allow",),
    # PyTorch never takes cuDNN's where kernels have to be deterministic.
    "the same, cuDNN's attention too": (
        "determinism.on_nondeterministic=allow",
        "determinism.attention.cudnn=true",
    ),
    # Which PyTorch up to 2.11, at least, parses in each matrix product.
    "the same, CUBLAS_WORKSPACE_CONFIG not set": (
        "determinism.on_nondeterministic=allow",
        "determinism.env.CUBLAS_WORKSPACE_CONFIG=null",
    ),
    "cuDNN times its algorithms": (
        "determinism.cudnn.benchmark=true",
        "determinism.cudnn.deterministic=false",
    ),
    "TF32": (
        "determinism.float32_matmul_precision=high",
        "determinism.cudnn.allow_tf32=true",
    ),
    "sums of bfloat16 in bfloat16": (
        "determinism.reduced_precision_reduction.bfloat16=null",
    ),
    "fingerprints every 10 steps": ("fingerprint.every_steps=10",),
    "fingerprints every 100 steps": ("fingerprint.every_steps=100",),
    "memory filled in every step": ("determinism.fill_uninitialized_memory=true",),
}
# GPT-2's smallest size but for its vocabulary; and one for a trial on the CPU.
GPT = {
    "cuda": (
        *("data.length=1024", "model.width=768", "model.layers=12", "model.heads=12"),
        "data.num_workers=2",
    ),
    "cpu": ("data.length=32", "model.width=32", "model.layers=1", "model.heads=2"),
}
GPT_BATCH = {"cuda": 16, "cpu": 4}
CNN_BATCHES = {"cuda": (64, 1024), "cpu": (16, 32)}
TURNS = {"cuda": (2, 2.0), "cpu": (2, 1.0)}  # their number, seconds

Make = Callable[[float], str]  # takes the time at which it is to end


def report(device: str, part: str, folder: Path, only: str) -> int:
    """Make the tables of a part whose titles contain a word; return the exit status."""
    end = time.monotonic() + PART_SECONDS[device]
    tables = gates.tables(device, folder) if part == "gates" else speed(device, folder)
    parts: list[str] = []
    for title, make in tables.items():
        if only.lower() not in title.lower():
            continue
        began = time.monotonic()
        limit = TABLE_SECONDS["compiled" if "compiled" in title else part]
        text = attempt(
            make, min(end, began + (limit if device == "cuda" else 2 * limit))
        )
        parts.append(f"### {title}\n\n{text}")
        print(f"{parts[-1]}\n({time.monotonic() - began:.0f} s)\n", flush=True)
        if device == "cuda" and not only:
            write(part, parts, folder)
    return int(any("failed" in part for part in parts))


def attempt(make: Make, until: float) -> str:
    """Return a table, or the error instead of it."""
    if time.monotonic() > until - 5:
        return "failed: no time was left"
    try:
        return make(until)
    except Exception as error:  # the others are made all the same
        return f"failed: {error if isinstance(error, InputError) else one_line(error)}"


def write(part: str, parts: list[str], folder: Path) -> None:
    """Write the tables so far, with the machine of the first run that has recorded
    it."""
    found = next(folder.rglob("environment.json"), None)
    if found is not None:
        ways.write_section(f"gpu {part}", parts, record.read_json(found))


def speed(device: str, folder: Path) -> Mapping[str, Make]:
    """Return the functions that make the tables of speed, by title: the usual ones
    first."""
    text = folder / "text.txt"
    lines = (
        b"%d+%d=%d the quick brown fox" % (i, 7 * i, 8 * i) for i in range(100_000)
    )
    text.write_bytes(b"\n".join(lines))
    gpt = (
        *(
            "experiment=char_gpt",
            f"data.file={text}",
            f"data.batch_size={GPT_BATCH[device]}",
        ),
        *(
            "data.eval_batch_size=16",
            "method.prompts=[]",
            "optimizer.lr=0.0003",
            *GPT[device],
        ),
    )
    first, rest = list(SETTINGS)[:4], list(SETTINGS)[4:]
    costs = "What each setting costs, GPT, bfloat16"
    # The first as in the raw loop.
    cnn = [
        ("data.augment=null", f"data.batch_size={size}") for size in CNN_BATCHES[device]
    ]
    small, large = (f"CNN, batch {size}" for size in CNN_BATCHES[device])
    found: dict[str, Callable[[], list[Program]]] = {
        "GPT, bfloat16": partial(compared, device, "bfloat16", gpt),
        f"{small}, float32": partial(compared, device, "float32", cnn[0]),
        costs: partial(settings, device, first, gpt),
        f"{costs}, continued": partial(settings, device, rest, gpt),
        "GPT, bfloat16, compiled": partial(
            compared, device, "bfloat16", gpt, compiled=True
        ),
        f"{large}, float32": partial(compared, device, "float32", cnn[1]),
        f"{large}, float32, compiled": partial(
            compared, device, "float32", cnn[1], compiled=True
        ),
    }
    for precision in ("float32", "float16"):
        found[f"GPT, {precision}"] = partial(compared, device, precision, gpt)
    for precision in ("bfloat16", "float16"):
        found[f"{large}, {precision}"] = partial(compared, device, precision, cnn[1])
    how = TURNS[device]
    return {
        title: partial(measured, make, how, folder / title)
        for title, make in found.items()
    }


def measured(
    make: Callable[[], list[Program]],
    how: tuple[int, float],
    folder: Path,
    until: float,
) -> str:
    programs, (turns, seconds) = make(), how
    warm = until - turns * seconds * len(programs)
    found = timing.measure(programs, folder, 1, turns, seconds, warm)
    return table(programs, found, memory=False)


def compared(
    device: str, precision: str, words: Sequence[str], compiled: bool = False
) -> list[Program]:
    """Return a raw loop, strict and fast as programs."""
    more = {"device": device, "precision": precision, "compile": compiled}
    words = (
        *common(device, precision),
        f"trainer.compile={str(compiled).lower()}",
        *words,
    )
    return [
        baseline(RAW, "loop.py", Path(), *words, **more),
        seedbed(STRICT, *words),
        seedbed(
            "strict, fingerprints every 100 steps",
            *words,
            "fingerprint.every_steps=100",
        ),
        seedbed(FAST, *words, "determinism=fast"),
    ]


def settings(device: str, names: Sequence[str], words: Sequence[str]) -> list[Program]:
    """Return strict, strict with each of some settings alone as under fast, and
    fast."""
    words = (*common(device, "bfloat16"), *words)
    changed = [seedbed(f"strict, {name}", *words, *SETTINGS[name]) for name in names]
    return [
        seedbed(STRICT, *words),
        *changed,
        seedbed(FAST, *words, "determinism=fast"),
    ]


def common(device: str, precision: str) -> tuple[str, ...]:
    # The raw loop neither rehearses its first steps nor saves.
    return (
        *(
            f"trainer.device={device}",
            f"trainer.precision={precision}",
            "determinism.threads=2",
        ),
        *("trainer.rehearse_resume=false", "trainer.checkpoint_every_steps=0"),
    )
