"""SQLAlchemy's dialect compliance suite, on the real service."""

from sqlalchemy.testing.suite import *  # noqa: F403
