"""The score on edits of code: python -m tests.edits

Each edit changes a line of the project in tests/edited. Both versions are replayed, and the edit
that `compare --explain --restore-code` would name first must be the one that was made. Beside it
every file of the second version has other edits: a comment, a docstring, and a function that no run
calls.
"""

import importlib
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from seedbed import compare
from seedbed.explain import places
from seedbed.explain.replay import Trace, replay
from seedbed.explain.trace_compare import Finding, first_difference
from tests import fault_score

BASE = Path(__file__).resolve().parent / "edited"
FILES = ("model.py", "data.py", "optimizer.py", "task.py")  # with decoys
STEPS = 2


@dataclass(frozen=True)
class Made:
    """An edit: the text of a file that is replaced, once, by another."""

    file: str
    old: str
    new: str
    stage: str  # the first that differs


CONV = "nn.Conv2d(channels, outputs, 3, padding=1, bias=False)"
EDITS = {
    "constant": Made("model.py", "self.scale = 0.5", "self.scale = 0.25", "loss"),
    "operator": Made("model.py", "(y) + x.mean", "(y) - x.mean", "loss"),
    "dropout moved": Made(
        *("model.py", "self.drop(y) + x.mean(dim=1, keepdim=True)"),
        *("self.drop(y + x.mean(dim=1, keepdim=True))", "loss"),
    ),
    "dropout rate": Made("model.py", "nn.Dropout(0.1)", "nn.Dropout(0.2)", "loss"),
    "extra relu": Made(
        "model.py", "x = F.max_pool2d(x, 2)", "x = F.relu(F.max_pool2d(x, 2))", "loss"
    ),
    "operation removed": Made("model.py", "y = F.relu(y)", "y = y", "loss"),
    "activation": Made("model.py", "y = F.relu(y)", "y = F.gelu(y)", "loss"),
    "pooling": Made("model.py", "F.max_pool2d(", "F.avg_pool2d(", "loss"),
    "initialisation": Made("model.py", "kaiming_normal_", "kaiming_uniform_", "loss"),
    "initial bias": Made("model.py", "nn.init.zeros_(", "nn.init.ones_(", "loss"),
    "padding": Made("model.py", CONV, CONV.replace("bias", "padding_mode='reflect', bias"), "loss"),
    "kernel": Made("model.py", CONV, CONV.replace("3, padding=1", "5, padding=2"), "loss"),
    "momentum of batch norm": Made("model.py", "momentum=0.1", "momentum=0.2", "buffers"),
    "dtype": Made("model.py", "self.conv(x))", "self.conv(x)).bfloat16().float()", "loss"),
    "detached shortcut": Made("model.py", "x.mean(dim", "x.detach().mean(dim", "gradients"),
    "layer added": Made("model.py", "Block(4, 4),", "Block(4, 4), nn.Conv2d(4, 4, 1),", "loss"),
    "bias added": Made("model.py", CONV, CONV.replace("False", "True"), "loss"),
    "normalisation": Made("data.py", "DEVIATION = 0.5, 0.3", "DEVIATION = 0.5, 0.31", "batch"),
    "strength of augmentation": Made("data.py", "= Jitter(0.1)", "= Jitter(0.2)", "batch"),
    "probability of augmentation": Made("data.py", "() < 0.5", "() < 0.1", "batch"),
    "axis of augmentation": Made("data.py", "flip(-1)", "flip(-2)", "batch"),
    "labels of a class": Made(
        *("data.py", "[index % 4 for index in range(samples)]"),
        *("[index % 4 if index % 4 else index // 4 % 4 for index in range(samples)]", "batch"),
    ),
    "order of the data": Made(
        "data.py", "list(range(samples))", "list(reversed(range(samples)))", "batch"
    ),
    "collate": Made("data.py", "return images, labels", "return images.flip(0), labels", "batch"),
    "epsilon": Made("optimizer.py", "eps=1e-8", "eps=1e-6", "weights"),
    "weight decay of vectors": Made(
        "optimizer.py", '"weight_decay": 0.0', '"weight_decay": 0.1', "weights"
    ),
    "betas": Made("optimizer.py", "(0.9, 0.99)", "(0.8, 0.99)", "optimizer"),
    "parameter in no group": Made(
        "optimizer.py", "if p.dim() > 1]", "if p.dim() > 2]", "gradients"
    ),
    "limit of gradients": Made("optimizer.py", "(-0.5, 0.5)", "(-0.01, 0.01)", "weights"),
    "constant of another module": Made("sizes.py", "WIDTH = 4", "WIDTH = 3", "loss"),
    "function of another module": Made("sizes.py", "1.5 * count", "2.5 * count", "loss"),
    "label smoothing": Made("task.py", "smoothing=0.1", "smoothing=0.2", "loss"),
    "penalty": Made("task.py", "0.001 *", "0.01 *", "loss"),
}
DECOYS = (
    ("+ 1\n", "+ 2\n"),  # of a function that no run calls
    ("\n\n\nclass ", "\n\n\n# A comment\nclass "),
)


@dataclass(frozen=True)
class Result:
    """What was found of an edit."""

    stage: str
    finding: Finding
    named: str  # file and line in B of the edit that is ranked first
    expected: str


def settings() -> dict[str, Any]:
    """Return a configuration of the classes in tests/edited."""
    images = {"_target_": "edited.data.Images"}
    return fault_score.settings() | {
        "data": {
            "batch_size": 8, "task": {"_target_": "edited.task.Smoothed"}, "train": images,
            "validation": images, "collate": "edited.data.collate",
        },
        "model": {"name": "net", "_target_": "edited.model.Net"},
        "optimizer": {"_target_": "edited.optimizer.Adam"},
    }  # fmt: skip


def write(root: Path, made: Made | None) -> tuple[dict[str, str], str]:
    """Write a version of the project below a folder.

    Returns:
        Its files by path from there, and the path and line of the edit.
    """
    texts, place = {}, ""
    for path in BASE.glob("*.py"):
        text = path.read_text()
        if made is not None:
            for old, new in DECOYS if path.name in FILES else ():
                assert old in text
                text = text.replace(old, new)
            if path.name == made.file:
                assert text.count(made.old) == 1, made
                line = text[: text.index(made.old)].count("\n") + 1
                place = f"edited/{path.name}:{line}"
                text = text.replace(made.old, made.new)
        texts[f"edited/{path.name}"] = text
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return texts, place


@contextmanager
def importing(root: Path) -> Iterator[None]:
    """Let `edited` be the package below a folder for a while."""
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == "edited"]:
            del sys.modules[name]


def traced(root: Path, step: int) -> Trace:
    """Replay a version of the project to a step."""
    with importing(root):
        return replay(settings(), step)


def explained(made: Made, folder: Path) -> Result:
    """Replay the project before and after an edit, and look for what was edited."""
    roots = [folder / name for name in ("a", "b")]
    (before, _), (after, expected) = write(roots[0], None), write(roots[1], made)
    texts = [before, after]
    traces = [traced(root, STEPS) for root in roots]
    difference = compare.first_difference(traces[0].rows, traces[1].rows)
    assert difference is not None, made
    if difference.step != STEPS:
        traces = [traced(root, difference.step) for root in roots]
    found = first_difference(traces[0].events, traces[1].events)
    assert found is not None, made
    first, *_ = places.edits_near(found, traces, roots, texts)
    return Result(difference.stage, found, f"{first.path}:{first.b.start}", expected)


def main() -> int:
    """Print the score as Markdown."""
    began, rows, right = time.monotonic(), [], 0
    with fault_score.flags():
        for name, made in EDITS.items():
            with tempfile.TemporaryDirectory() as folder:
                result = explained(made, Path(folder))
            right += result.named == result.expected
            event = result.finding.event
            module = f" in {event.place.module}" if event.place.module else ""
            rows.append(
                f"| {name} | {result.stage} | {result.finding.phase}: {event.operation}{module}, "
                f"{result.finding.reason} | {result.named} | "
                f"{'yes' if result.named == result.expected else f'no: {result.expected}'} |"
            )
    print(f"The edit that was made is ranked first: {right} of {len(EDITS)}.\n")
    print("| edit | stage | first operation that differs | edit ranked first | right |")
    print("| --- | --- | --- | --- | --- |")
    print("\n".join(rows))
    print(
        f"\nMeasured on {time.strftime('%Y-%m-%d')} in {time.monotonic() - began:.0f} s: "
        f"{platform.machine()} CPU, 1 thread, Python {platform.python_version()}, PyTorch "
        f"{torch.__version__}, {platform.system()}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
