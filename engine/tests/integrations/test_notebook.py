"""The page on notebooks, cell by cell in a kernel of Jupyter."""

from ast import literal_eval
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests import pages
from tests.running import QUICK, TEMPLATE


def test_the_cells_of_the_page_run_in_a_kernel(tmp_path: Path) -> None:
    """In a folder of its own; the last cell shows how many images of the test set are
    wrong."""
    root = pages.copy_project(tmp_path / "project", {})
    pages.run(root, "train.py", "hydra.run.dir=runs/a", *QUICK)
    texts = pages.blocks((TEMPLATE / "docs/notebooks.md").read_text(), "python")
    notebook = nbformat.v4.new_notebook(
        cells=list(map(nbformat.v4.new_code_cell, texts))
    )
    where = {"metadata": {"path": str(root)}}
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=where
    )
    client.execute(env=pages.variables(root))
    outputs = [each for cell in notebook.cells for each in cell.outputs]
    wrong, images = literal_eval(outputs[-1].data["text/plain"])
    assert 0 <= wrong < images == 500
