"""The picture of a benchmark: how fast each program trains beside the bare loop."""

from collections.abc import Sequence
from pathlib import Path

import timing
from benchmark_sections import Section
from timing import Round

from seedbed.record import plots

_PRESETS = ("strict", "seeded", "fast")


def draw(sections: Sequence[tuple[Section, list[Round]]], path: Path) -> None:
    """Draw each program's speed beside the bare loop, medians with their ranges."""
    from matplotlib.figure import Figure

    heights = [len(section.programs) for section, _ in sections]
    with plots.style():
        figure = Figure(figsize=(7.2, 0.8 + 0.24 * sum(heights)), layout="constrained")
        all_axes = figure.subplots(
            len(heights), 1, squeeze=False, sharex=True, height_ratios=heights
        )[:, 0]
        for axes, (section, rounds) in zip(all_axes, sections, strict=True):
            names = [program.name for program in reversed(section.programs)]
            found = [timing.speed(rounds, n, section.base) for n in names]
            medians = [speed.median for speed in found]
            ranges = [
                [speed.median - speed.low for speed in found],
                [speed.high - speed.median for speed in found],
            ]
            colors = [plots.ORANGE if n.startswith(_PRESETS) else plots.BLUE for n in names]
            axes.barh(names, medians, xerr=ranges, color=colors, height=0.7)
            axes.axvline(1.0, color=plots.GREY, linewidth=0.8, linestyle=":")
            axes.set_title(section.title)
        all_axes[-1].set_xlabel("times as fast as the bare loop")
        plots.save(figure, path)
