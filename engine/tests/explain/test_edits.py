"""An edited line is named: the first operation that differs, and the edit that explains it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

from seedbed.explain import construction
from seedbed.explain.edits import Edit, Spot, counterpart, find, rank
from tests import edits, fault_score
from tests.edits import EDITS

QUICK = ("constant", "dropout rate", "initialisation", "normalisation", "epsilon")


@pytest.fixture(scope="module", autouse=True)
def _flags() -> Iterator[None]:
    with fault_score.flags():
        yield


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in EDITS]
)
def test_an_edit_is_ranked_first(name: str, tmp_path: Path) -> None:
    """Its stage, its file and its line, among edits that no run executes."""
    result = edits.explained(EDITS[name], tmp_path)

    assert result.stage == EDITS[name].stage, result
    assert result.named == result.expected, result


A = '''"""A module."""

RATE = 0.5


class Net:
    def __init__(self):
        self.a = RATE
        self.b = 1

    def forward(self, x):
        return x * self.a


def other(x):
    return x
'''


def edited(*pairs: tuple[str, str]) -> str:
    text = A
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([('"""A module."""', '"""A docstring\nof two lines."""')], []),
        ([("RATE = 0.5", "RATE  =  0.5  # as in the paper")], []),
        ([("class Net:\n", 'class Net:\n    """A net."""\n\n')], []),
        ([("RATE = 0.5", "RATE = 0.25")], [Edit("net.py", range(3, 4), range(3, 4))]),
        (
            [("A module", "Modules"), ("        self.b = 1\n", "")],
            [Edit("net.py", range(9, 10), range(9, 9))],
        ),
        (
            [("        return x *", "        x = -x\n        return x *")],
            [Edit("net.py", range(12, 12), range(12, 13))],
        ),
        ([("return x * self.a", "return x *")], [Edit("net.py", range(12, 13), range(12, 13))]),
    ],
)
def test_only_what_python_runs_is_an_edit(
    pairs: list[tuple[str, str]], expected: list[Edit]
) -> None:
    """No comment, docstring or space; a deletion and an addition are; so is what does not parse."""
    assert find("net.py", A, edited(*pairs)) == expected


def test_files_that_are_not_python_are_compared_by_lines() -> None:
    """Any line counts."""
    assert find("kernel.cu", "// a\nx", "// b\nx") == [Edit("kernel.cu", range(1, 2), range(1, 2))]


def test_the_nearest_edit_comes_first() -> None:
    """The spot's statement, its function, its class, its file, another file."""
    b = edited(
        *(("RATE = 0.5", "RATE = 0.25"), ("self.a = RATE", "self.a = 2 * RATE")),
        *(
            ("self.b = 1", "self.b = 2"),
            ("x * self.a", "x / self.a"),
            ("return x\n", "return -x\n"),
        ),
    )
    texts = [{"net.py": A, "far.py": "x = 1\n"}, {"net.py": b, "far.py": "x = 2\n"}]
    found = [*find("far.py", "x = 1\n", "x = 2\n"), *find("net.py", A, b)]
    lines = [edit.a.start for edit in rank(found, texts, [Spot(0, "net.py", 12)])]
    assert lines[:2] == [12, 8]
    assert (set(lines[2:4]), lines[4:]) == ({3, 16}, [1])
    assert rank(found, texts, [Spot(1, "net.py", 16)])[0].a.start == 16
    second = rank(found, texts, [Spot(0, "nowhere.py", 1), Spot(0, "net.py", 3)])
    assert second[0].a.start == 3


@pytest.mark.parametrize(
    ("use", "text", "line"),
    [
        ("        return x * RATE", "RATE = 1\n", 1),
        ("        return x * rates.rate(x)", "import os\n\ndef rate(x):\n    return 1\n", 4),
        ("        return x\n\n\ndef later():\n    return RATE", "RATE: int = 1\n", 1),
    ],
    ids=["constant", "function", "elsewhere in the file"],
)
def test_what_the_spot_mentions_is_near_wherever_it_is_defined(
    use: str, text: str, line: int
) -> None:
    """Nearer than an edit of the spot's file that it does not mention, here of `other`.

    The name of a variable of the spot's function is another thing of the same name.
    """
    net = A.replace("RATE = 0.5", "from rates import rate").replace(
        "        return x * self.a", use
    )
    b = net.replace("def other(x):\n    return x", "def other(x):\n    return -x")
    names = ("net.py", "rates.py", "x.py")
    texts = [
        dict(zip(names, version, strict=True))
        for version in ((net, text, "x = 1\n"), (b, text.replace("1", "2"), "x = 2\n"))
    ]
    found = [edit for name in names for edit in find(name, texts[0][name], texts[1][name])]
    ranked = rank(found, texts, [Spot(0, "net.py", 12)])
    assert [edit.path for edit in ranked] == ["rates.py", "net.py", "x.py"]
    assert ranked[0].a.start == line


@pytest.mark.parametrize(
    ("a", "b", "line", "expected"),
    [
        ("x\ny\nz\n", "0\nx\ny\nz\n", 3, 2),
        ("x\ny\nz\n", "x\nz\n", 2, 3),
        ("x\ny\nz\n", "x\nnew\ny\nz\n", 2, 1),
        ("x\ny\nz\n", "x\nY\nz\n", 2, 2),
        ("", "x\n", 1, 1),
    ],
)
def test_a_line_has_a_counterpart(a: str, b: str, line: int, expected: int) -> None:
    """The same line; the one in its place; the one before what the other version lacks."""
    assert counterpart(a, b, line) == expected


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = [
            nn.Linear(2, 3),
            nn.Dropout(0.5),
        ]
        self.parts = nn.Sequential(*parts)
        nn.init.ones_(self.parts[0].bias)


def test_how_a_model_is_built_is_noted_by_module_and_line() -> None:
    """Draws of a layer, an initialisation by the model, a layer that draws nothing."""
    with construction.watched() as built:
        model = Part()
    events, lines = list(built.events(model)), built.lines(model)
    places = [(e.operation, e.place.module, e.draws) for e in events if e.outputs]

    assert ("aten.uniform_.default", "parts.0", True) in places
    assert places[-1][:2] == ("aten.fill_.Scalar", "")
    assert {event.place.phase for event in events} == {"construction"}
    text = Path(__file__).read_text().splitlines()

    def made(name: str) -> list[str]:
        return [text[int(line.rpartition(":")[2]) - 1].strip() for line in lines[name]]

    assert made("parts.0")[0] == "nn.Linear(2, 3),"
    assert made("parts.1") == ["self.parts = nn.Sequential(*parts)"]
    assert set(lines) == {"parts", "parts.0", "parts.1"}
    Part()  # no hook is left behind
    assert [event.operation for event in built.events(model)] == [e.operation for e in events]
    assert len(built._modules) == len(lines)
