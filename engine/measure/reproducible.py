"""Draw docs/reproducible.png: two runs with the same bits, and a third that diverges.

usage: python engine/measure/reproducible.py [--runs DIR] [--out FILE]

example:
    python engine/measure/reproducible.py --runs runs/reproducible

Trains the CNN for 5 epochs three times: A; B, the same with two data-loader workers; and C, with
one thread instead of two. Runs that are already in DIR are not trained again.

exit status: 0 drawn, 1 A and B differ or A and C do not, 2 a run failed
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seedbed import compare, record
from seedbed.config import options
from seedbed.errors import InputError, exit_status
from seedbed.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
COMMON = ("seed=0", "trainer.max_epochs=5", "trainer.log_every_steps=1")
RUNS = {"a": (), "b": ("data.num_workers=2",), "c": ("determinism.threads=1",)}
LABELS = {
    "a": "A: seed=0",
    "b": "B: data.num_workers=2 (same bits)",
    "c": "C: determinism.threads=1",
}
ZERO = 1e-10  # where an exact 0 is drawn on the logarithmic axis


def main() -> int:
    """Train what is missing, check what the picture claims, and draw it."""
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="seedbed-figure-") as temporary:
        folder = arguments.runs or Path(temporary)
        for name, overrides in RUNS.items():
            if not record.is_run(folder / name):
                train(folder / name, overrides)
        place = first_difference(folder / "a", folder / "c")
        if first_difference(folder / "a", folder / "b") or not place:
            print("A and B differ, or A and C do not: nothing was drawn")
            return 1
        with plots.style():
            plots.save(figure(folder, place), arguments.out)
    print(arguments.out)
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--runs", metavar="DIR", type=Path, help="keep the runs in this folder")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, default=ROOT / "docs" / "reproducible.png"
    )
    return parser.parse_args()


def train(folder: Path, overrides: tuple[str, ...]) -> None:
    """Train one of the runs into a folder; raise InputError if it fails."""
    words = ("train.py", *COMMON, *overrides, f"hydra.run.dir={folder.resolve()}")
    if subprocess.run([sys.executable, *words], cwd=ROOT, check=False).returncode:
        raise InputError(f"{folder}: expected a finished run, got none; see its train.log")


def first_difference(a: Path, b: Path) -> str:
    """Return step, stage, operation and module of the first difference, "" where there is none."""
    difference = compare.compare(compare.read(a), compare.read(b)).difference
    if difference is None:
        return ""
    words = ("scripts/compare.py", a.resolve(), b.resolve(), "--explain")
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = re.search(r"^  (?:forward|backward|update): (.+)$", done.stdout, re.MULTILINE)
    place = f"step {difference.step}, {difference.stage}"
    return f"{place}: {found[1]}" if found else place


def figure(folder: Path, place: str) -> "Figure":
    """Return the losses of the three runs and, below, the differences of B and C from A."""
    from matplotlib.figure import Figure

    losses = {
        name: plots.points(record.read_metrics(folder / name), "train", "loss") for name in RUNS
    }
    drawing = Figure(figsize=(7.2, 4.4), layout="constrained")
    above, below = drawing.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    looks = {  # from wide to narrow, so that each is seen where they cover each other
        "a": {"color": plots.BLUE, "lw": 7, "alpha": 0.35, "solid_capstyle": "butt"},
        "b": {"color": plots.ORANGE, "lw": 3.2, "solid_capstyle": "butt"},
        "c": {"color": "black", "ls": (0, (1, 1)), "lw": 1.2},
    }
    for name, look in looks.items():
        above.plot(*plots.running_mean(*losses[name], 10), label=LABELS[name], **look)
    plots.legend(drawing)
    above.set(ylabel="training loss (mean of 10)", title=f"A and C first differ at {place}")
    steps, base = losses["a"]
    for name, mark in (("b", plots.ORANGE), ("c", "black")):
        apart = np.abs(losses[name][1] - base)
        below.plot(steps, np.where(apart == 0, ZERO, apart), ".", color=mark, markersize=2.5)
    finish(below, float(steps[-1]))
    return drawing


def finish(axes: "Axes", last_step: float) -> None:
    """Label the lower panel, where an exact 0 has a line of its own."""
    axes.set(yscale="log", ylim=(ZERO / 4, 1), xlabel="step", ylabel="difference of the loss")
    powers = (-8, -6, -4, -2, 0)
    axes.set_yticks([ZERO, *(10.0**power for power in powers)])
    axes.set_yticklabels(["exactly 0", *(f"$10^{{{power}}}$" for power in powers)])
    axes.minorticks_off()
    axes.text(last_step, 2 * ZERO, "|B \N{MINUS SIGN} A|", color=plots.ORANGE, ha="right")
    axes.text(last_step, 0.2, "|C \N{MINUS SIGN} A|", color="black", ha="right")


if __name__ == "__main__":
    sys.exit(exit_status(main))
