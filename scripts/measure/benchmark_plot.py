"""The picture of a benchmark: how fast each program trains beside the bare loop."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import timing
from benchmark_sections import Section
from timing import Round, Spread

from seedbed.record import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PRESETS = ("strict", "seeded", "fast")
# What a program's name says of its work, in this order; programs of one group do the same work.
_GROUPS = (
    ("bfloat16", "bfloat16, data in memory"),
    ("no augmentation", "no augmentation, data in memory"),
    ("plain", "torchvision's data set and transforms, a sample at a time"),
    ("Lightning", "torchvision's data set and transforms, a sample at a time"),
    ("2 workers", "2 loader workers, data in memory"),
    ("", "float32, data in memory"),
)


def draw(sections: Sequence[tuple[Section, list[Round]]], path: Path) -> None:
    """Draw each program's speed beside the bare loop, medians with their ranges.

    Programs that do the same work stand together, the fastest first.
    """
    from matplotlib.figure import Figure

    tables = [grouped(section, rounds) for section, rounds in sections]
    heights = [sum(len(rows) + 1.2 for rows in groups.values()) for groups in tables]
    with plots.style():
        figure = Figure(figsize=(7.2, 0.9 + 0.23 * sum(heights)), layout="constrained")
        all_axes = figure.subplots(
            len(heights), 1, squeeze=False, sharex=True, height_ratios=heights
        )[:, 0]
        for axes, (section, _), groups in zip(all_axes, sections, tables, strict=True):
            _draw_groups(axes, groups)
            axes.set_title(section.title, fontweight="bold", fontsize=10)
        handles = [
            all_axes[0].barh(0, 0, color=color, label=label)
            for color, label in ((plots.ORANGE, "Seedbed, by preset"), (plots.BLUE, "others"))
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
        all_axes[-1].set_xlabel("times as fast as the bare loop (more is better)")
        plots.save(figure, path)


def grouped(section: Section, rounds: list[Round]) -> dict[str, list[tuple[str, Spread]]]:
    """Return names and speeds by the work that is done; in each group the fastest first."""
    groups: dict[str, list[tuple[str, Spread]]] = {title: [] for _, title in reversed(_GROUPS)}
    for program in section.programs:
        title = next(title for word, title in _GROUPS if word in program.name)
        groups[title].append((program.name, timing.speed(rounds, program.name, section.base)))
    return {
        title: sorted(rows, key=lambda row: -row[1].median)
        for title, rows in groups.items()
        if rows
    }


def _draw_groups(axes: "Axes", groups: dict[str, list[tuple[str, Spread]]]) -> None:
    places, names, y = [], [], 0.0
    for title, rows in groups.items():
        if len(groups) > 1:
            axes.text(0.01, y + 0.15, title, fontsize=8, style="italic", va="center")
            y += 1.0
        for name, speed in rows:
            color = plots.ORANGE if name.startswith(_PRESETS) else plots.BLUE
            ranges = [[speed.median - speed.low], [speed.high - speed.median]]
            axes.barh(y, speed.median, xerr=ranges, color=color, height=0.7)
            places.append(y)
            names.append(name)
            y += 1.0
        y += 0.2
    axes.set_yticks(places, names)
    axes.set_ylim(y - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.axvline(1.0, color=plots.GREY, linewidth=0.8, linestyle=":")
