"""What the tests share: the repository, and the command."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in the tests are as a reader of the documentation has them."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command frontdesk."""

    def run(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([os.environ["FRONTDESK"], *arguments], capture_output=True, text=True, check=False)

    return run
