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


def _move(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a folder of one's own, with the repository's scenarios and crates."""
    for name in ("scenarios", "crates"):
        (folder / name).symlink_to(Path(name).resolve())
    monkeypatch.chdir(folder)


def _run(page: str, examples: list[str]) -> None:
    assert examples
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, page, "exec"), names)


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    examples = _examples(page)
    _move(tmp_path, monkeypatch)
    _run(page, examples)


def test_the_rows_of_a_sweep_are_read_as_its_page_says(command, tmp_path, monkeypatch, capsys):
    page = "docs/sweep.md"
    examples = _examples(page)
    _move(tmp_path, monkeypatch)
    told = command("sweep", "scenarios/sweeps/neighbours.toml", "--out", "neighbours")
    assert told.returncode == 0, told.stderr
    _run(page, examples)
    table = capsys.readouterr().out
    assert re.search(r"arm +frontdesk +stock", table) and re.search(r"^7( +\d+\.\d+){2}$", table, re.MULTILINE), table


def test_the_notebook_goes_from_a_scenario_to_a_plot():
    notebook = nbformat.read("docs/notebooks/neighbours.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are not kept in the repository"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": "docs/notebooks"}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
