"""Draw docs/reproducible.png: two runs with the same bits, and a third that diverges.

usage: python engine/measure/reproducible.py

Trains the CNN for 5 epochs three times: A; B, the same with two loader workers; and C,
with one thread instead of two.

exit status: 0 drawn, 1 a run failed, or A and B differ, or A and C do not
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import ways
from matplotlib.figure import Figure

from seedbed import compare, record
from seedbed.record import plots

COMMON = ("trainer.max_epochs=5", "trainer.log_every_steps=1")
RUNS = {  # line styles, from wide to narrow because the curves overlap
    "A: seed=0": {
        "color": plots.BLUE,
        "lw": 7,
        "alpha": 0.35,
        "solid_capstyle": "butt",
    },
    "B: data.num_workers=2": {
        "color": plots.ORANGE,
        "lw": 3.2,
        "solid_capstyle": "butt",
    },
    "C: determinism.threads=1": {"color": "black", "ls": (0, (1, 1)), "lw": 1.2},
}
ZERO = 1e-10  # where an exact 0 is drawn on the logarithmic axis


def main(out: Path) -> int:
    """Train, check the claims of the picture, and draw it."""
    with tempfile.TemporaryDirectory(prefix="seedbed-figure-") as temporary:
        folders = [
            ways.plainly(Path(temporary, label[0]), (*COMMON, label[3:]))
            for label in RUNS
        ]
        a, b, c = map(compare.read, folders)
        place = compare.compare(a, c).difference
        if compare.compare(a, b).difference is not None or place is None:
            print("A and B differ, or A and C do not: nothing was drawn")
            return 1
        with plots.style():
            title = f"A and C first differ at step {place.step}, {place.stage}"
            plots.save(figure(folders, title), out)
    print(out)
    return 0


def figure(folders: list[Path], title: str) -> Figure:
    """Plot the losses of the three runs and, below, the differences of B and C from
    A."""
    drawing = Figure(figsize=(7.2, 4.4), layout="constrained")
    above, below = drawing.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    curves = [
        plots.points(record.read_metrics(folder), "train", "loss") for folder in folders
    ]
    steps, base = curves[0]
    for curve, (label, look) in zip(curves, RUNS.items(), strict=True):
        means = (np.convolve(each, np.ones(10) / 10, mode="valid") for each in curve)
        above.plot(*means, label=label + " (same bits)" * (label[0] == "B"), **look)
        apart = np.where(curve[1] == base, ZERO, np.abs(curve[1] - base))
        if label[0] != "A":
            below.plot(steps, apart, ".", color=look["color"], markersize=2.5)
    drawing.legend(loc="outside lower center", ncols=3)
    above.set(ylabel="training loss (mean of 10)", title=title)
    below.set(
        yscale="log", ylim=(ZERO / 4, 1), xlabel="step", ylabel="difference from A"
    )
    powers = [f"$10^{{-{power}}}$" for power in (8, 6, 4, 2)]
    below.set_yticks([ZERO, 1e-8, 1e-6, 1e-4, 1e-2, 1], ["exactly 0", *powers, "1"])
    below.minorticks_off()
    return drawing


if __name__ == "__main__":
    sys.exit(main(ways.ROOT / "docs" / "reproducible.png"))
