"""Why a run failed: where in the user's own code, told apart from what the engine did before it."""

import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from seedbed.record.terminal import Tee
from seedbed.worker.loaded import is_installed_file

_ENGINE = str(Path(__file__).parents[1])
_FROM_HERE = "From your code on; train.log has the whole traceback:\n"
# What a DataLoader raises instead of the error of a loader worker, whose traceback is a text.
_IN_LOADER_WORKER = re.compile(
    r"Caught \w+ in DataLoader worker process \d+\.\nOriginal (Traceback .+)", re.DOTALL
)
_FRAME = re.compile(r'  File "(.+)", line (\d+)(?:, in (.+))?')
_DATA = "data"
# Where torch makes a batch of samples by itself.
_STACKS = "/torch/utils/data/_utils/collate.py"
_UNLIKE = (
    "expected samples of tensors, arrays or numbers, all of the same shapes, got others "
    "({}); change what the data set returns, or name a collate function"
)
# Before the traceback of an error that another one led to.
_LED_TO = re.compile(r"\n\n(?:The above exception was|During handling of the above) .+:\n\n")


class _Place(NamedTuple):
    file: str
    line: int | str | None
    function: str | None  # None: the file cannot be compiled

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{f', in {self.function}' * (self.function is not None)}"


@dataclass(frozen=True)
class Failure:
    """A failure in words.

    Attributes:
        reason: type and message of the exception.
        place: `file:line, in function` of the innermost frame of the user's code, or `data` where
            torch cannot make a batch of the samples; empty if the failure is none of these.
        traceback: the whole of it.
        own: the traceback from the user's code on; the whole if there is none.
    """

    reason: str
    place: str
    traceback: str
    own: str

    @property
    def line(self) -> str:
        """Return `place: reason` in one line."""
        return ": ".join(filter(None, (self.place, self.reason.partition("\n")[0])))


def of(error: BaseException) -> Failure:
    """Return why a run failed, also where a loader worker did."""
    whole = "".join(traceback.format_exception(error))
    message = _message(error)
    steps = list(_steps(error.__traceback__))
    places = [_Place(_file(one), one.tb_lineno, one.tb_frame.f_code.co_name) for one in steps]
    own = [number for number, place in enumerate(places) if _is_users(place.file)]
    reason = _explained(f"{type(error).__name__}: {message}", places)
    in_worker = _IN_LOADER_WORKER.fullmatch(message)
    if in_worker is not None:
        found = _of_text(in_worker[1].rstrip("\n"), whole)
        if not own or found.place not in ("", _DATA):
            return found
        reason = found.reason
    # A worker that was killed is noticed by a signal, wherever the training process is then.
    if not own or any(place.file.endswith("/_utils/signal_handling.py") for place in places):
        return _of_no_line(reason, whole)
    place = places[own[-1]]
    if isinstance(error, SyntaxError) and _is_users(error.filename or "<"):
        place = _Place(str(error.filename), error.lineno, None)
    shown = "".join(traceback.format_exception(type(error), error, steps[own[0]]))
    return Failure(reason, str(place), whole, f"{_FROM_HERE}{shown}")


def _of_text(text: str, whole: str) -> Failure:
    """Return the failure of a loader worker, from its traceback."""
    start = max((found.end() for found in _LED_TO.finditer(text)), default=0)
    title, *lines = text[start:].splitlines()
    frames = list(takewhile(lambda line: line.startswith(" "), lines))
    found = [(n, _FRAME.fullmatch(line)) for n, line in enumerate(frames)]
    places = [(n, _Place(*match.groups())) for n, match in found if match]
    raised = "\n".join(lines[len(frames) :])
    reason = _explained(raised, [place for _, place in places])
    own = [(n, place) for n, place in places if _is_users(place.file)]
    if not own:
        return _of_no_line(reason, whole)
    shown = "\n".join([f"{text[:start]}{title}", *frames[own[0][0] :], raised])
    return Failure(reason, str(own[-1][1]), whole, f"{_FROM_HERE}{shown}\n")


def _of_no_line(reason: str, whole: str) -> Failure:
    """Return a failure that no line of the user's code led to; their samples may have."""
    if reason.startswith(_UNLIKE.partition("{")[0]):
        return Failure(reason, _DATA, whole, "")
    return Failure(reason, "", whole, whole)


def _explained(reason: str, places: Sequence[_Place]) -> str:
    """Return the reason, in other words where torch stacks samples and not the user's code."""
    first = next((n for n, place in enumerate(places) if place.file.endswith(_STACKS)), 0)
    if first and not _is_users(places[first - 1].file):
        return _UNLIKE.format(" ".join(reason.split()))
    return reason


def show(failure: Failure) -> None:
    """Print a failure; train.log gets the whole traceback, and both end in the user's line."""
    if isinstance(sys.stderr, Tee):
        sys.stderr.write_apart(failure.own, failure.traceback)
    else:
        sys.stderr.write(failure.traceback)
    if failure.place:
        print(f"error: {failure.line}", file=sys.stderr)
    sys.stderr.flush()


def _steps(step: TracebackType | None) -> Iterator[TracebackType]:
    while step is not None:
        yield step
        step = step.tb_next


def _file(step: TracebackType) -> str:
    return step.tb_frame.f_code.co_filename


def _is_users(file: str) -> bool:
    """Return whether a file is of neither the engine nor Python nor anything installed."""
    return not file.startswith(("<", _ENGINE)) and not is_installed_file(file)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as another:
        return f"(its message cannot be shown: {type(another).__name__})"
