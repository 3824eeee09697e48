"""A picture of two runs: their losses, their metric, and the first difference."""

from pathlib import Path

from seedbed.compare.difference import Comparison, Record
from seedbed.errors import InputError
from seedbed.record import plots


def draw(a: Record, b: Record, result: Comparison, out: Path) -> None:
    """Draw both runs into a file whose name ends in .png."""
    if out.suffix != ".png":
        raise InputError(f"--plot: expected a name that ends in .png, got {out}")
    first = result.difference
    columns = list(dict.fromkeys(("loss", str(a.summary.get("metric_name") or "loss"))))
    with plots.style():
        figure = plots.panels(len(columns))
        for axes, column in zip(figure.axes, columns, strict=True):
            for run, side, color in ((a, "A", plots.BLUE), (b, "B", plots.ORANGE)):
                own, hollow = run.metrics, "none" if side == "B" else color  # A shows below B
                name = f"{side} {plots.literal(Path(run.name).name)}"
                curve = plots.points(own, "train", column)
                plots.training(axes, curve, color, name, ls="--" if side == "B" else "-")
                curve, label = plots.points(own, "validation", column), f"{side} validation"
                axes.plot(*curve, "o", color=color, mfc=hollow, label=label)
            if first is not None:
                axes.axvline(first.step, color=plots.GREY, ls=":", label="first difference")
            axes.set_ylabel(plots.literal(column))
        title = f"the runs diverge at step {first.step:,}" if first else "the runs agree"
        figure.axes[0].set_title(title)
        plots.legend(figure, columns=3)
        try:
            plots.save(figure, out)
        except OSError as error:
            raise InputError(
                f"--plot: expected a file that can be written, got {error.strerror}: {out}"
            ) from None
