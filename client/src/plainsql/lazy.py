"""Modules that are imported on first use, so that a command starts faster."""

from importlib import import_module
from typing import Any


class LazyModule:
    """A stand-in for a module. Imports it on first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
