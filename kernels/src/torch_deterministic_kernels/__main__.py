"""Print the table of operations in Markdown: python -m torch_deterministic_kernels."""

from torch_deterministic_kernels.operations import OPERATIONS

HEAD = """# Operations

From `python -m torch_deterministic_kernels`. In PyTorch 2.11 to 2.15 none of these has
a deterministic kernel. A row that says since when PyTorch has its own is of a kernel
that is not used from that version on. Costs on a GPU have not been measured. Forms with
`out=` are replaced alike.
"""
COLUMNS = (
    "name",
    "used by",
    "PyTorch's error names",
    "devices",
    "cost of the kernel",
    "under Inductor",
    "PyTorch's file",
    "note",
)


def markdown() -> str:
    """Return the table, a row for each name."""
    lines = [HEAD, "| " + " | ".join(COLUMNS) + " |", "| --- " * len(COLUMNS) + "|"]
    for operation in OPERATIONS:
        folder = "" if operation.operator.startswith("torchvision") else "cuda/"
        since = [f"PyTorch's own since {operation.until}"] if operation.until else []
        cells = (
            f"`{operation.name}`",
            operation.used_by,
            f"`{operation.refused_as}`",
            ", ".join(operation.devices),
            operation.cost,
            operation.compiled,
            f"{folder}{operation.source}",
            "; ".join(filter(None, [operation.note, *since])),
        )
        shown = ("not refused" if cell == "``" else cell for cell in cells)
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
