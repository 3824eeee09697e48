"""Operations whose bits differ between two environments are named, and no others."""

import operation_bits

SAME = {"error": "", "not repeated": "", "forward": "aa", "backward": "bb"}


def test_only_operations_with_other_bits_are_named() -> None:
    """The phase that differs is named; negative control: equal bits give no line."""
    ours = {"sum": SAME, "group_norm": SAME}
    assert operation_bits.differences(ours, ours) == []
    theirs = ours | {"group_norm": SAME | {"backward": "cc"}}
    assert operation_bits.differences(ours, theirs) == ["group_norm: backward"]


def test_an_operation_of_one_version_alone_is_named_with_its_error() -> None:
    """Whichever of the two refuses it, or has no such entry."""
    refused = {"error": "no such mode", "not repeated": ""}
    for pair in (({"a": SAME}, {"a": refused}), ({"a": refused}, {"a": SAME})):
        assert operation_bits.differences(*pair) == ["a: error, forward, backward: no such mode"]
    (line,) = operation_bits.differences({"a": SAME}, {})
    assert line.endswith(": not in the catalogue")
