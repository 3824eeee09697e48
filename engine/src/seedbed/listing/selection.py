"""Which runs are asked for, and in which order: --where, --since and --sort."""

import datetime
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from seedbed.errors import InputError
from seedbed.listing.rows import RESULTS, Row
from seedbed.names import did_you_mean
from seedbed.record import text

# The page of --html takes these patterns from here: they mean the same in JavaScript.
_SPACE = r"[ \t\r\n]*"
_QUOTED = r"""\"[^\"]*\"|'[^']*'"""
CONDITION = (  # !, KEY, relation, VALUE; between spaces
    rf"{_SPACE}(!?)({_QUOTED}|(?![\"'])[^ \t\r\n=<>!]+)"
    rf"(?:{_SPACE}(<=|>=|!=|=|<|>){_SPACE}({_QUOTED}|(?![\"'])[^ \t\r\n]*))?"
    r"(?:[ \t\r\n]+|$)"
)
NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Condition:
    """`KEY=VALUE`, with `!=`, `<`, `<=`, `>`, `>=`; `KEY` (has a value) or `!KEY` (has
    none). Keys and values with spaces are in quotes."""

    key: str
    relation: str  # one of these, `set` or `unset`
    value: str = ""

    @classmethod
    def parse_all(cls, words: str) -> "list[Condition]":
        """Return the conditions in a text, one or more with spaces between them."""
        conditions = list[Condition]()
        rest = words
        while rest or not conditions:
            found = re.match(CONDITION, rest)
            if found is None or (found[1] and found[3]):
                raise InputError(
                    "--where: expected KEY=VALUE (or !=, <, <=, >, >=), KEY or !KEY,"
                    f" got {rest}"
                )
            key = _unquoted(found[2])
            if found[3]:
                conditions.append(cls(key, found[3], _unquoted(found[4])))
            else:
                conditions.append(cls(key, "unset" if found[1] else "set"))
            rest = rest[found.end() :]
        return conditions

    def holds(self, row: Row) -> bool:
        value = row.get(self.key)
        if self.relation in ("set", "unset"):
            is_set = value is not False and value not in (None, "", [])
            return is_set == (self.relation == "set")
        if self.relation in ("=", "!="):
            return _is(value, self.value) == (self.relation == "=")
        number = _number(self.value)
        if isinstance(value, str):  # dates, names
            return _ORDERS[self.relation](value, self.value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or number is None
        ):
            return False
        return _ORDERS[self.relation](value, number)


def _is(value: Any, asked: str) -> bool:
    """Return whether a value is the one in a condition; a list, whether it or an item
    is."""
    if isinstance(value, list) and any(_is(item, asked) for item in value):
        return True
    number = _number(asked)
    if (
        number is not None
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ):
        return bool(value == number)
    pattern = ".*".join(map(re.escape, asked.split("*")))
    return re.fullmatch(pattern, text.show(value), re.DOTALL) is not None


def _unquoted(word: str) -> str:
    return word[1:-1] if word[:1] in ("'", '"') else word


def _number(word: str) -> int | float | None:
    """Return a number, integers with all their digits; None if it is another text."""
    if not re.fullmatch(NUMBER, word):
        return None
    with suppress(ValueError):
        return int(word)
    return float(word)


def since(word: str) -> str:
    """Return a date and time as rows have it: of a date, or of some time ago such as
    2d."""
    now = datetime.datetime.now()
    ago = re.fullmatch(r"(\d{1,6})([mhdw])", word)
    try:
        if ago:
            then = now - datetime.timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            then = datetime.datetime.fromisoformat(word)
            then = then.astimezone().replace(tzinfo=None) if then.tzinfo else then
    except (ValueError, OverflowError):
        raise InputError(
            "--since: expected a date such as 2026-11-28, or a time ago such as 90m,"
            f" 12h, 2d or 1w, got {word}"
        ) from None
    return then.isoformat(timespec="seconds")


def select(
    rows: Sequence[Row], conditions: Iterable[Condition], since: str = ""
) -> list[Row]:
    """Return the rows for which all conditions hold, of runs that were started `since`
    then."""
    asked = list(conditions)
    known = known_keys(rows)
    for condition in asked:
        try:
            require_key("--where", condition.key, known)
        except InputError as error:
            is_word = condition.relation in ("set", "unset")
            hint = "; a value with spaces needs quotes" if is_word else ""
            raise InputError(f"{error}{hint}") from None
    kept = [row for row in rows if all(condition.holds(row) for condition in asked)]
    return [row for row in kept if str(row.get("started", "")) >= since]


def ordered(rows: Sequence[Row], key: str, reverse: bool) -> list[Row]:
    """Return rows sorted by a key: numbers, then texts; runs without a value are
    last."""

    def has(row: Row) -> bool:
        value = row.get(key)
        return value is not None and not (
            isinstance(value, float) and math.isnan(value)
        )

    def rank(row: Row) -> tuple[bool, int | float, str]:
        value = row[key]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return False, value, ""
        return True, 0, text.show(value)

    there = sorted(filter(has, rows), key=rank, reverse=reverse)
    return [*there, *(row for row in rows if not has(row))]


def join_sort_key(words: Sequence[str]) -> list[str]:
    """Return the words of a command with `--sort -KEY` as `--sort=-KEY`.

    argparse would take -KEY for an option, and say that --sort has no argument.
    """
    joined = list[str]()
    for word in words:
        if joined[-1:] == ["--sort"] and re.match("-[^-]", word):
            joined[-1] = f"--sort={word}"
        else:
            joined.append(word)
    return joined


def sort_key(word: str) -> str:
    if word.startswith("-"):
        raise InputError(
            f"--sort: expected a key, got {word}; to sort from high to low, give"
            f" --sort {word.lstrip('-')} --reverse"
        )
    return word


def known_keys(rows: Sequence[Row]) -> dict[str, None]:
    return dict.fromkeys(key for row in rows for key in row)


def require_key(option: str, key: str, known: Iterable[str]) -> None:
    names = list(known)
    if key not in names:
        hint = did_you_mean(key, names) or _metric_meant(key, names)
        raise InputError(f"{option}: expected a key, got {key}{hint}")


def _metric_meant(name: str, keys: Sequence[str]) -> str:
    """Return `; did you mean X` with the result of a metric, such as accuracy; empty if
    none is close."""
    metrics = {
        key.removeprefix(prefix): key
        for prefix in reversed(RESULTS)  # validation's, rather than test's
        for key in keys
        if key.startswith(prefix)
    }
    close = get_close_matches(name, metrics, n=1, cutoff=0.8)
    close += [
        metric for metric in metrics if len(name) >= 3 and metric.startswith(name)
    ]
    return f"; did you mean {metrics[close[0]]}" if close else ""
