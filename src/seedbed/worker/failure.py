"""Why a run failed: where in the user's own code, told apart from what the engine did before it."""

import itertools
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from seedbed.record.terminal import Tee
from seedbed.worker.loaded import is_installed_file

_ENGINE = str(Path(__file__).parents[1])
# What a DataLoader raises instead of the error of a loader worker, whose traceback is a text.
_IN_LOADER_WORKER = re.compile(
    r"Caught \w+ in DataLoader worker process \d+\.\nOriginal (Traceback .+)", re.DOTALL
)
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """A failure in words.

    Attributes:
        reason: type and message of the exception.
        place: `file:line, in function` of the innermost frame of the user's code; empty if the
            failure is none of it.
        traceback: the whole of it.
        own: the traceback from the user's code on; the whole if there is none.
    """

    reason: str
    place: str
    traceback: str
    own: str


def of(error: BaseException) -> Failure:
    """Return why a run failed, also where a loader worker did."""
    whole = "".join(traceback.format_exception(error))
    in_worker = _IN_LOADER_WORKER.fullmatch(str(error))
    if in_worker is None:
        frames = list(traceback.extract_tb(error.__traceback__))
        reason = f"{type(error).__name__}: {error}"
    else:
        text = in_worker[1].rstrip("\n")
        frames = [
            traceback.FrameSummary(file, int(line), name)
            for file, line, name in _FRAME.findall(text)
        ]
        reason = _message(text)
    own = [number for number, frame in enumerate(frames) if _is_users(frame.filename)]
    if not own:
        return Failure(reason, "", whole, whole)
    last = frames[own[-1]]
    shown = [
        "Traceback (most recent call last), from your code on; train.log has all of it:\n",
        *traceback.format_list(frames[own[0] :]),
        f"{reason}\n",
    ]
    place = f"{last.filename}:{last.lineno}, in {last.name}"
    return Failure(reason, place, whole, "".join(shown))


def show(failure: Failure) -> None:
    """Print a failure; train.log gets the whole traceback, and both end in the user's line."""
    if isinstance(sys.stderr, Tee):
        sys.stderr.write_apart(failure.own, failure.traceback)
    else:
        sys.stderr.write(failure.traceback)
    if failure.place:
        first_line = failure.reason.partition("\n")[0]
        print(f"error: {failure.place}: {first_line}", file=sys.stderr)
    sys.stderr.flush()


def _is_users(file: str) -> bool:
    """Return whether a file is of neither the engine nor Python nor anything installed."""
    return not file.startswith(("<", _ENGINE)) and not is_installed_file(file)


def _message(text: str) -> str:
    """Return type and message at the end of a traceback: what follows its last frame."""
    after = [found.end() for found in _FRAME.finditer(text)][-1:]
    lines = text[after[0] + 1 if after else 0 :].splitlines()
    return "\n".join(itertools.dropwhile(lambda line: line.startswith("    "), lines))
