"""Modules that are imported when something of them is first asked for, so that a command need not wait for them."""

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module, and imports it at the first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
