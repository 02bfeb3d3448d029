"""The notebook in examples runs, and each result shows as a table."""

import json
from pathlib import Path
from typing import Any

import pytest

from suite.limits import scaled

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
CAPTIONS = ("Report: 1 error", "Resolution", "Estimate: memory required", "Plan: 8 ranks")


@pytest.fixture(scope="module")
def outputs() -> list[dict[str, Any]]:
    """Run the notebook; return the result of each code cell by MIME type."""
    nbformat: Any = pytest.importorskip("nbformat")
    client: Any = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client.NotebookClient(notebook, timeout=int(scaled(200)), kernel_name="python3").execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell.outputs[-1]["data"] for cell in cells]


@pytest.mark.live
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_each_result_is_a_table_with_a_text_form(outputs: list[dict[str, Any]]) -> None:
    assert len(outputs) == len(CAPTIONS)
    for data, caption in zip(outputs, CAPTIONS, strict=True):
        assert f"<caption>{caption}" in data["text/html"]
        assert data["text/html"].count("<tr>") > 1
        assert data["text/plain"].startswith("<")


def test_notebook_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in cells)
