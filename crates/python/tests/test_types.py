"""Types: what the package says of itself is so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def _run(*arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_package_is_typed(tmp_path):
    _run("mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path), "crates/python/python/frontdesk")


def test_the_stub_is_that_of_the_compiled_half(tmp_path):
    package = str(Path("crates/python/python").resolve())
    arguments = ["--mypy-config-file", "pyproject.toml", "frontdesk._frontdesk"]
    _run("mypy.stubtest", *arguments, MYPYPATH=package, MYPY_CACHE_DIR=str(tmp_path))
