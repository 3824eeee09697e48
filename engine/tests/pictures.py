"""What a picture must have, whatever it shows."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from matplotlib.figure import Figure

from seedbed.record import plots

_POINT = 1 / 72  # in inches: no letter is cut off by less


@contextmanager
def checked() -> Iterator[None]:
    """Fail for a warning, and for every picture that is saved with something cut off."""
    save = plots.save

    def saved(figure: Figure, path: Path) -> Path:
        assert is_whole(figure), f"{path.name}: something drawn lies outside the picture"
        return save(figure, path)

    with warnings.catch_warnings(), patch.object(plots, "save", saved):
        warnings.simplefilter("error")
        yield


def is_whole(figure: Figure) -> bool:
    """Return whether all that is drawn lies within the picture."""
    figure.set_dpi(200)  # as it is saved
    figure.draw_without_rendering()
    drawn, (width, height) = figure.get_tightbbox().padded(-_POINT), figure.get_size_inches()
    return bool(min(drawn.min) >= 0 and drawn.x1 <= width and drawn.y1 <= height)
