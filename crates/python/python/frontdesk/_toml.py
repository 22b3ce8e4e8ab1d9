"""Values of Python as TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Union

Value = Union[str, int, float, bool, Sequence["Value"], Mapping[str, "Value"]]
"""What a key of a scenario or of a configuration can be; times are texts, as "10ms"."""


def toml(value: Value) -> str:
    """A value as TOML, in one line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)} = {toml(own)}" for key, own in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml(own) for own in value) + "]"
    # What NumPy calculates with, too.
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, (int, float)):
        return repr(number)
    raise TypeError(f"{value!r} is none of str, bool, int, float, list and dict")


def document(tables: Mapping[str, Value]) -> str:
    """Keys and their values as a TOML document."""
    return "".join(f"{json.dumps(key, ensure_ascii=False)} = {toml(value)}\n" for key, value in tables.items())
