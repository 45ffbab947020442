"""The notebooks run, and print the tables of docs/headlines.md and what they show."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]


def test_the_notebook_prints_the_table_of_headlines():
    notebook = nbformat.read(ROOT / "python/notebooks/published.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without what it printed"
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream" and output["name"] == "stdout")
    headlines = (ROOT / "docs/headlines.md").read_text().splitlines()
    rows = [line for line in headlines if line.startswith("| S")]
    assert rows and printed.splitlines() == rows
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 2


def test_the_notebook_of_munmap_prints_what_it_shows():
    path = ROOT / "python/notebooks/munmap.ipynb"
    notebook = nbformat.read(path, as_version=4)
    outputs = [cell.get("outputs", []) for cell in notebook.cells]
    shown = [output["data"]["text/plain"] for cell in outputs for output in cell]
    assert len(shown) == 5 and len(path.read_bytes()) < 40_000, "it is kept with its tables and a small picture"
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    assert [output["data"]["text/plain"] for cell in notebook.cells for output in cell.get("outputs", [])] == shown
