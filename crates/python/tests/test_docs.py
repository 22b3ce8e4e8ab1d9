"""What the documentation says to do in Python works, and so does the notebook."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

PAGES = ["README.md", "docs/python.md", "crates/python/README.md"]


def _examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", Path(page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    examples = _examples(page)
    assert examples
    for folder in ("scenarios", "crates"):
        (tmp_path / folder).symlink_to(Path(folder).resolve())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, page, "exec"), names)


def test_the_notebook_goes_from_a_scenario_to_a_plot():
    notebook = nbformat.read("docs/notebooks/neighbours.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are not kept in the repository"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": "docs/notebooks"}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
