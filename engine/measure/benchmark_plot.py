"""Draw a benchmark: how fast each program trains beside the bare loop.

usage: python engine/measure/benchmark_plot.py BENCHMARKS.json OUT.png

example:
    python engine/measure/benchmark_plot.py docs/benchmarks.json docs/benchmarks.png

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

    Workloads that are compared with something else are left out. Each has a panel, the first one
    the left side; in it programs that do the same work stand together, the fastest first.
    """
    from matplotlib.figure import Figure

    shown = [(each["workload"], grouped(each)) for each in workloads if each["base"] == BARE]
    heights = [sum(len(rows) + 1 for rows in groups.values()) + 2 for _, groups in shown]
    most = max(found.high for _, groups in shown for rows in groups.values() for _, found in rows)
    right = range(1, len(shown)) or range(1)
    with plots.style():
        height = 0.8 + 0.2 * max(heights[0], sum(heights[1:]))
        figure = Figure(figsize=(9.6, height), layout="constrained")
        panels = figure.subplot_mosaic(
            [[0, number] for number in right],
            height_ratios=[heights[number] for number in right],
            sharex=True,
        )
        for number, (title, groups) in enumerate(shown):
            panels[number].set_title(title, fontweight="bold")
            _draw_workload(panels[number], groups)
        panels[0].set_xlim(0, 1.15 * most)
        for color, label in ((plots.ORANGE, "Seedbed, by preset"), (plots.BLUE, "others")):
            panels[0].barh(0, 0, color=color, label=label)
        plots.legend(figure)
        for number in {0, right[-1]}:
            panels[number].set_xlabel("times as fast as the bare loop")
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


def _draw_workload(axes: "Axes", groups: Mapping[str, Rows]) -> None:
    """Draw a bar for each program, below a heading that says what its group does."""
    labels: list[str] = []
    for heading, rows in groups.items():
        labels.append(f"{heading}:")
        for name, found in rows:
            _draw_bar(axes, len(labels), name, found)
            labels.append(_short(name))
    axes.set_yticks(range(len(labels)), labels)
    for label in axes.get_yticklabels():
        label.set_fontstyle("italic" if label.get_text().endswith(":") else "normal")
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.axvline(1.0, color=plots.GREY, linewidth=0.8, linestyle=":")


def _draw_bar(axes: "Axes", y: int, name: str, found: Spread) -> None:
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


def _short(name: str) -> str:
    for word in _SHORTENED:
        name = name.replace(f", {word}", "")
    return name


if __name__ == "__main__":
    sys.exit(exit_status(main))
