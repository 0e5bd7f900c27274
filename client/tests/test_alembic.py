"""Alembic's own commands on the real service, each from an empty database, in every mode of a connection."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import alembic
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.ddl.impl import DefaultImpl
from alembic.migration import MigrationContext
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql.base import PGDialect

from client.tests.test_sqlalchemy import address
from plainsql.alembic_impl import AsksConnection, register
from server.tests.service import Service

TEMPLATES = Path(alembic.__file__).parent / "templates"
# By mode: Alembic's template, the scheme, the options of the URL.
MODES = {
    "transactions": ("generic", "plainsql", {}),
    "lazy": ("generic", "plainsql", {"rehearse": "lazy"}),
    "autocommit": ("generic", "plainsql", {"autocommit": "true"}),
    "asyncio": ("async", "plainsql+asyncio", {}),
    "asyncio autocommit": ("async", "plainsql+asyncio", {"autocommit": "true"}),
}
TRANSACTIONAL, NON_TRANSACTIONAL = "Will assume transactional DDL.", "Will assume non-transactional DDL."


def models() -> sa.MetaData:
    metadata = sa.MetaData()
    sa.Table(
        "owners", metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("name", sa.String(40), nullable=False, unique=True, comment="as on the door"),
        sa.Column("token", sa.Uuid, nullable=False, server_default=sa.func.gen_random_uuid()),
        comment="People who own things.",
    )  # fmt: skip
    sa.Table(
        "things", metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("owner_id", sa.ForeignKey("owners.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("parent_id", sa.ForeignKey("things.id")),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("price", sa.Numeric(10, 2), nullable=False, server_default="0"),
        sa.Column("twice", sa.Numeric, sa.Computed("price * 2", persisted=True)),
        sa.Column("weight", sa.Double),
        sa.Column("count", sa.SmallInteger, server_default=sa.text("1")),
        sa.Column("is_new", sa.Boolean, nullable=False, server_default=sa.true()),
        sa.Column("state", sa.Enum("open", "done", name="thing_state"), nullable=False, server_default="open"),
        sa.Column("made_on", sa.Date),
        sa.Column("opens", sa.Time),
        sa.Column("took", sa.Interval),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.Column("data", JSONB, nullable=False, server_default="{}"),
        sa.Column("tags", ARRAY(sa.Text)),
        sa.Column("photo", sa.LargeBinary),
        sa.UniqueConstraint("owner_id", "name", name="one_name_per_owner"),
        sa.CheckConstraint("price >= 0", name="price_is_not_negative"),
        sa.Index("ix_things_lower_name", sa.text("lower(name)")),
        sa.Index("ix_things_open", "made_on", postgresql_where=sa.text("is_new")),
    )  # fmt: skip
    return metadata


class Project:
    """A folder as `alembic init` makes it, an empty database, and Alembic's log."""

    def __init__(self, service: Service, mode: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        template, scheme, options = MODES[mode]
        database = f"alembic{uuid4().hex[:8]}"
        service.customers.add_database(database)
        self.location = address(service, database, **options)
        self.folder = folder / "migrations"
        self._caplog = caplog
        caplog.set_level("INFO", "alembic")
        shutil.copytree(TEMPLATES / template, self.folder)
        (self.folder / "versions").mkdir()
        environment = self.folder / "env.py"
        text = environment.read_text()
        assert "target_metadata = None" in text
        text = text.replace("target_metadata = None", 'target_metadata = config.attributes["models"]')
        environment.write_text(
            text.replace("connection=connection,", "connection=connection, compare_server_default=True,")
        )
        self.config = Config(stdout=io.StringIO())
        self.config.set_main_option("script_location", str(self.folder))
        self.config.set_main_option("sqlalchemy.url", f"{scheme}://{self.location}")
        self.config.attributes["models"] = models()
        self.engine = sa.create_engine(f"plainsql://{self.location}")

    def autogenerate(self, revision: str) -> str:
        """The new revision's text."""
        command.revision(self.config, autogenerate=True, rev_id=revision)
        (file,) = (self.folder / "versions").glob(f"{revision}_*.py")
        return file.read_text()

    def write(self, revision: str, *steps: str) -> None:
        """A revision by hand, after those of lower numbers."""
        before = sorted(each.name[:4] for each in (self.folder / "versions").glob("*.py"))
        lines = ["import sqlalchemy as sa", "from alembic import op", f"revision = {revision!r}"]
        lines += [f"down_revision = {before[-1] if before else None!r}", "def upgrade():"]
        text = "\n".join([*lines, *(f"    {step}" for step in steps), "def downgrade():", "    pass", ""])
        (self.folder / "versions" / f"{revision}_by_hand.py").write_text(text)

    def tables(self) -> set[str]:
        return set(sa.inspect(self.engine).get_table_names())

    def version(self) -> str | None:
        with self.engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()

    def ddl_in_log(self) -> set[str]:
        """What the log says about DDL since the last call."""
        messages = {each.getMessage() for each in self._caplog.records if each.getMessage().startswith("Will assume")}
        self._caplog.clear()
        return messages


@pytest.fixture(params=MODES)
def project(
    service: Service, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Project]:
    made = Project(service, request.param, tmp_path, caplog)
    yield made
    made.engine.dispose()


def is_autocommit(project: Project) -> bool:
    return "autocommit" in project.location


def test_autogenerate_from_an_empty_database_finds_nothing_the_second_time(project: Project) -> None:
    first = project.autogenerate("0001")
    for step in ("create_table('owners'", "create_table('things'", "ix_things_open", "one_name_per_owner", "as on the"):
        assert step in first
    assert project.tables() <= {"alembic_version"}
    command.upgrade(project.config, "head")
    assert project.tables() == {"alembic_version", "owners", "things"}
    command.check(project.config)
    second = project.autogenerate("0002")
    assert "op." not in second.partition("def upgrade")[2]
    command.upgrade(project.config, "head")
    assert project.version() == "0002"
    command.downgrade(project.config, "base")
    assert (project.tables(), project.version()) == ({"alembic_version"}, None)
    assert project.ddl_in_log() == {NON_TRANSACTIONAL if is_autocommit(project) else TRANSACTIONAL}


def test_a_migration_that_fails_does_what_the_log_announces(project: Project) -> None:
    project.write("0001", "op.create_table('first', sa.Column('id', sa.Integer))")
    project.write("0002", "op.create_table('second', sa.Column('id', sa.Integer))", "op.drop_column('nowhere', 'x')")
    with pytest.raises(sa.exc.ProgrammingError, match='relation "nowhere" does not exist') as caught:
        command.upgrade(project.config, "head")
    # Also where it failed with a later statement, which SQLAlchemy names.
    assert "ALTER TABLE nowhere DROP COLUMN x" in str(caught.value)
    if is_autocommit(project):
        assert (project.ddl_in_log(), project.tables(), project.version()) == (
            {NON_TRANSACTIONAL}, {"alembic_version", "first", "second"}, "0001",
        )  # fmt: skip
    else:
        assert (project.ddl_in_log(), project.tables(), project.version()) == ({TRANSACTIONAL}, set(), None)


def test_an_index_is_made_concurrently_in_an_autocommit_block(project: Project) -> None:
    project.write(
        "0001",
        "op.create_table('t', sa.Column('id', sa.Integer))",
        "with op.get_context().autocommit_block():",
        "    op.create_index('i', 't', ['id'], postgresql_concurrently=True)",
        "op.add_column('t', sa.Column('name', sa.Text))",
    )
    command.upgrade(project.config, "head")
    found = sa.inspect(project.engine)
    assert [each["name"] for each in found.get_indexes("t")] == ["i"]
    assert [each["name"] for each in found.get_columns("t")] == ["id", "name"]
    assert project.version() == "0001"


@pytest.mark.unit
def test_other_dialects_keep_their_implementation() -> None:
    register()
    register()
    other: Any = PGDialect()  # type: ignore[no-untyped-call]
    kind = DefaultImpl.get_by_dialect(other)
    assert (kind.__name__, kind.__mro__.count(AsksConnection)) == ("PostgresqlImpl", 1)
    assert kind(other, None, False, None, None, {}).transactional_ddl
    assert not kind(other, None, False, False, None, {}).transactional_ddl
