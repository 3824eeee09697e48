"""Draw a benchmark: how fast each program trains beside the bare loop.

usage: python scripts/measure/benchmark_plot.py BENCHMARKS.json OUT.png

example:
    python scripts/measure/benchmark_plot.py docs/benchmarks.json docs/benchmarks.png

exit status: 0 drawn, 2 it cannot be drawn
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import timing
from benchmark_programs import BARE
from timing import Spread

from seedbed.config import options
from seedbed.errors import InputError, exit_status
from seedbed.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A workload of benchmarks.json: its name, the program that it is compared with, and the rounds.
Workload = Mapping[str, Any]
Rows = Sequence[tuple[str, Spread]]
_PRESETS = ("strict", "seeded", "fast")
_PER_SAMPLE = "a sample at a time"
# What a program's name says of its work, in this order; programs of one group do the same work.
_GROUPS = (
    ("plain", _PER_SAMPLE),
    ("Lightning", _PER_SAMPLE),
    ("bfloat16", "bfloat16"),
    ("no augmentation", "no augmentation"),
    ("2 workers", "2 loader workers"),
    ("", "data in memory"),
)
_SHORTENED = ("bfloat16", "no augmentation")  # said by the title of the group
_COLUMNS = 2


def main() -> int:
    """Draw the measurements that the command line names."""
    parser = options.parser(__doc__)
    parser.add_argument("measured", metavar="BENCHMARKS.json", type=Path)
    parser.add_argument("out", metavar="OUT.png", type=Path)
    arguments = parser.parse_args()
    try:
        draw(json.loads(arguments.measured.read_text())["workloads"], arguments.out)
    except (OSError, ValueError, LookupError) as error:
        raise InputError(
            f"{arguments.measured}: expected what benchmark.py measured, and a place for "
            f"{arguments.out}, got {type(error).__name__}: {error}; name others"
        ) from None
    return 0


def draw(workloads: Sequence[Workload], path: Path) -> None:
    """Draw each program's speed beside the bare loop, medians with their ranges.

    Workloads that are compared with something else are left out. Programs that do the same work
    share a panel, the fastest first.
    """
    from matplotlib.figure import Figure

    groups = [
        (f"{workload['workload']}: {title}", rows)
        for workload in workloads
        if workload["base"] == BARE
        for title, rows in grouped(workload).items()
    ]
    lines = [groups[start : start + _COLUMNS] for start in range(0, len(groups), _COLUMNS)]
    heights = [max(len(rows) for _, rows in line) + 1.5 for line in lines]
    most = max(speed.high for _, rows in groups for _, speed in rows)
    with plots.style():
        figure = Figure(figsize=(9.6, 0.8 + 0.22 * sum(heights)), layout="constrained")
        panels = figure.subplots(
            len(lines), _COLUMNS, squeeze=False, height_ratios=heights, sharex=True
        )
        for axes in panels.ravel()[len(groups) :]:
            axes.set_axis_off()
        for line, row in zip(lines, panels, strict=True):
            for axes, (title, rows) in zip(row, line, strict=False):
                axes.set_title(title, fontweight="bold")
                _draw_group(axes, rows, max(len(rows) for _, rows in line))
        panels[0, 0].set_xlim(0, 1.15 * most)
        for color, label in ((plots.ORANGE, "Seedbed, by preset"), (plots.BLUE, "others")):
            panels[0, 0].barh(0, 0, color=color, label=label)
        plots.legend(figure)
        for axes in panels[-1]:
            axes.set_xlabel("times as fast as the bare loop (more is better)")
        plots.save(figure, path)


def grouped(workload: Workload) -> dict[str, Rows]:
    """Return names and speeds by the work that is done; in each group the fastest first."""
    groups: dict[str, list[tuple[str, Spread]]] = {title: [] for _, title in reversed(_GROUPS)}
    for name in workload["rounds"][0]:
        title = next(title for word, title in _GROUPS if word in name)
        groups[title].append((name, speed(workload, name)))
    return {
        title: sorted(rows, key=lambda row: -row[1].median)
        for title, rows in groups.items()
        if rows
    }


def speed(workload: Workload, name: str) -> Spread:
    """Return how many times as fast as the bare loop a program trains: a ratio for each round."""
    seconds = [(each[workload["base"]], each[name]) for each in workload["rounds"]]
    return timing.spread([base["step_seconds"] / own["step_seconds"] for base, own in seconds])


def _draw_group(axes: "Axes", rows: Rows, places: int) -> None:
    """Draw bars as thick as in the panel beside it, which may have more of them."""
    for y, (name, found) in enumerate(rows):
        color = plots.ORANGE if name.startswith(_PRESETS) else plots.BLUE
        ranges = [[found.median - found.low], [found.high - found.median]]
        axes.barh(y, found.median, xerr=ranges, color=color, height=0.7)
        axes.text(
            found.high + 0.04,
            y,
            f"{found.median:.2f}",
            va="center",
            fontsize=7,
            color=plots.GREY,
            bbox={"color": "white", "pad": 0.5},
        )
    axes.set_yticks(range(len(rows)), [_short(name) for name, _ in rows])
    axes.set_ylim(places - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.axvline(1.0, color=plots.GREY, linewidth=0.8, linestyle=":")


def _short(name: str) -> str:
    for word in _SHORTENED:
        name = name.replace(f", {word}", "")
    return name


if __name__ == "__main__":
    sys.exit(exit_status(main))
