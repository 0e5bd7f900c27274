"""What SQLAlchemy's own suite needs before it starts: the dialect under test, registered under a name of its own.

And what it does not say by itself: which of its classes had no case to run, because of what they require as a whole.
"""

from typing import Any

import pytest
from sqlalchemy.dialects import registry

registry.register("plainsql.suite", "plainsql.dialect", "PlainSQLDialect")


class Unrun:
    """Says at the end which classes were found and not run."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before the suite takes out what the requirements do not allow."""
        self.found = {_class_of(item) for item in items}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        run = {_class_of(item).split("_")[0] for item in terminalreporter._session.items}
        for name in sorted(self.found - run):
            terminalreporter.write_line(f"NOT RUN {name}")


def _class_of(item: pytest.Item) -> str:
    parent = item.getparent(pytest.Class)
    return "" if parent is None else parent.name


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Unrun())
