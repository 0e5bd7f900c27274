"""Small web applications in the shape of their frameworks' tutorials, with nothing changed but the database's URL.

FastAPI with SQLModel, Flask with Flask-SQLAlchemy, and SQLAlchemy's asyncio engine.
"""

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any
from uuid import uuid4

import flask
import flask_sqlalchemy
import httpx
import pytest
import sqlalchemy as sa
import sqlmodel
from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, selectinload

from client.tests.requests_made import requests_made
from client.tests.test_sqlalchemy import address
from server.tests.service import Service


@pytest.fixture(scope="module")
def location(service: Service) -> str:
    name = f"apps{uuid4().hex[:8]}"
    service.customers.add_database(name)
    return address(service, name)


# FastAPI and SQLModel -----------------------------------------------------------------------------------------------


class Team(sqlmodel.SQLModel, table=True):
    """A team of heroes."""

    id: int | None = sqlmodel.Field(default=None, primary_key=True)
    name: str = sqlmodel.Field(index=True, unique=True)
    heroes: list["Hero"] = sqlmodel.Relationship(back_populates="team")


class Hero(sqlmodel.SQLModel, table=True):
    """A hero, who may be in a team."""

    id: int | None = sqlmodel.Field(default=None, primary_key=True)
    name: str = sqlmodel.Field(index=True)
    age: int | None = None
    team_id: int | None = sqlmodel.Field(default=None, foreign_key="team.id")
    team: Team | None = sqlmodel.Relationship(back_populates="heroes")


def heroes_application(engine: sa.Engine) -> FastAPI:
    app = FastAPI()

    def session() -> Iterator[sqlmodel.Session]:
        with sqlmodel.Session(engine) as opened:
            yield opened

    needed = Depends(session)

    @app.post("/teams/")
    def create_team(name: str, session: Annotated[sqlmodel.Session, needed]) -> Team:
        team = Team(name=name)
        session.add(team)
        session.commit()
        session.refresh(team)
        return team

    @app.post("/heroes/")
    def create_hero(hero: Hero, session: Annotated[sqlmodel.Session, needed]) -> Hero:
        session.add(hero)
        session.commit()
        session.refresh(hero)
        return hero

    @app.get("/heroes/")
    def read_heroes(session: Annotated[sqlmodel.Session, needed], offset: int = 0, limit: int = 100) -> list[Hero]:
        query = sqlmodel.select(Hero).order_by(sqlmodel.col(Hero.id)).offset(offset).limit(limit)
        return list(session.exec(query).all())

    @app.get("/teams/{team_id}/heroes")
    def read_team(team_id: int, session: Annotated[sqlmodel.Session, needed]) -> list[str]:
        team = session.get(Team, team_id)
        if team is None:
            raise HTTPException(404, "There is no such team.")
        return sorted(hero.name for hero in team.heroes)

    @app.patch("/heroes/{hero_id}")
    def update_hero(hero_id: int, changes: dict[str, Any], session: Annotated[sqlmodel.Session, needed]) -> Hero:
        hero = session.get(Hero, hero_id)
        if hero is None:
            raise HTTPException(404, "There is no such hero.")
        hero.sqlmodel_update(changes)
        session.add(hero)
        session.commit()
        session.refresh(hero)
        return hero

    @app.delete("/heroes/{hero_id}")
    def delete_hero(hero_id: int, session: Annotated[sqlmodel.Session, needed]) -> dict[str, bool]:
        hero = session.get(Hero, hero_id)
        if hero is None:
            raise HTTPException(404, "There is no such hero.")
        session.delete(hero)
        session.commit()
        return {"ok": True}

    return app


def test_fastapi_with_sqlmodel(location: str) -> None:
    engine = sa.create_engine(f"plainsql://{location}")
    tables = [sqlmodel.SQLModel.metadata.tables[name] for name in ("team", "hero")]
    sqlmodel.SQLModel.metadata.create_all(engine, tables=tables)

    async def talk() -> None:
        transport = httpx.ASGITransport(heroes_application(engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as web:
            team = (await web.post("/teams/?name=Preventers")).json()
            made = [
                (await web.post("/heroes/", json={"name": name, "team_id": team["id"]})).json()
                for name in ("Deadpond", "Rusty-Man", "Spider-Boy")
            ]
            assert [hero["id"] for hero in made] == [1, 2, 3]
            changed = (await web.patch("/heroes/2", json={"age": 48})).json()
            assert (changed["age"], changed["name"]) == (48, "Rusty-Man")
            assert (await web.delete("/heroes/1")).json() == {"ok": True}
            assert (await web.delete("/heroes/1")).status_code == 404
            assert (await web.get(f"/teams/{team['id']}/heroes")).json() == ["Rusty-Man", "Spider-Boy"]
            page = (await web.get("/heroes/?offset=1&limit=5")).json()
            assert [hero["name"] for hero in page] == ["Spider-Boy"]

    asyncio.run(talk())
    with sqlmodel.Session(engine) as session:
        session.add(Team(name="Preventers"))
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
        team = Team(name="Z-Force", heroes=[Hero(name="Tarantula"), Hero(name="Captain")])
        session.add(team)
        session.commit()
        assert sorted(hero.name for hero in team.heroes) == ["Captain", "Tarantula"]
    sqlmodel.SQLModel.metadata.drop_all(engine, tables=tables)
    engine.dispose()


# Flask-SQLAlchemy ---------------------------------------------------------------------------------------------------


def blog_application(url: str) -> tuple[flask.Flask, Any]:
    app = flask.Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db: Any = flask_sqlalchemy.SQLAlchemy(app)

    class Author(db.Model):  # type: ignore[misc]  # made at run time
        id = db.Column(db.Integer, primary_key=True)
        username = db.Column(db.String(80), unique=True, nullable=False)
        posts = db.relationship("Post", back_populates="author", order_by="Post.id")

    class Post(db.Model):  # type: ignore[misc]  # made at run time
        id = db.Column(db.Integer, primary_key=True)
        title = db.Column(db.String(100), nullable=False)
        views = db.Column(db.Integer, nullable=False, default=0)
        author_id = db.Column(db.ForeignKey("author.id"), nullable=False)
        author = db.relationship(Author, back_populates="posts")

    @app.post("/authors")
    def register() -> Any:
        username = flask.request.values["username"]
        db.session.add(Author(username=username))
        try:
            db.session.commit()
        except sa.exc.IntegrityError:
            db.session.rollback()
            return f"{username} is already registered.", 409
        return {"id": db.session.scalar(sa.select(Author.id).where(Author.username == username))}

    @app.post("/<username>/posts")
    def write(username: str) -> Any:
        author = db.first_or_404(sa.select(Author).filter_by(username=username))
        post = Post(title=flask.request.values["title"], author=author)
        db.session.add(post)
        db.session.flush()
        number = db.session.scalar(sa.select(sa.func.count()).where(Post.author_id == author.id))
        db.session.commit()
        return {"id": post.id, "number": number}

    @app.get("/posts/<int:post_id>")
    def show(post_id: int) -> Any:
        post = db.get_or_404(Post, post_id)
        post.views += 1
        db.session.commit()
        return {"title": post.title, "author": post.author.username, "views": post.views}

    @app.get("/posts")
    def index() -> Any:
        page = db.paginate(sa.select(Post).order_by(Post.id.desc()), per_page=2)
        return {"total": page.total, "titles": [post.title for post in page.items]}

    return app, db


def test_flask_sqlalchemy(location: str) -> None:
    app, db = blog_application(f"plainsql://{location}")
    with app.app_context():
        db.create_all()
    web = app.test_client()
    assert web.post("/authors", data={"username": "ann"}).json == {"id": 1}
    assert web.post("/authors", data={"username": "ann"}).status_code == 409
    written = [web.post("/ann/posts", data={"title": f"Post {number}"}).json for number in (1, 2, 3)]
    assert [each and each["number"] for each in written] == [1, 2, 3]
    assert web.post("/bob/posts", data={"title": "x"}).status_code == 404
    for views in (1, 2):
        assert web.get("/posts/2").json == {"title": "Post 2", "author": "ann", "views": views}
    assert web.get("/posts/99").status_code == 404
    assert web.get("/posts").json == {"total": 3, "titles": ["Post 3", "Post 2"]}
    with app.app_context():
        db.drop_all()
        db.engine.dispose()


# SQLAlchemy with asyncio --------------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    """The models of the asyncio test."""


class Shelf(Base):
    __tablename__ = "shelves"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    books: Mapped[list["Book"]] = relationship(order_by="Book.id")


class Book(Base):
    __tablename__ = "books"
    id: Mapped[int] = mapped_column(primary_key=True)
    shelf_id: Mapped[int] = mapped_column(sa.ForeignKey("shelves.id"))
    title: Mapped[str]


@pytest.mark.parametrize("scheme", ["plainsql+asyncio", "plainsql"])
def test_the_asyncio_engine(location: str, scheme: str) -> None:
    async def main() -> None:
        engine = create_async_engine(f"{scheme}://{location}")
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        sessions = async_sessionmaker(engine, expire_on_commit=False)
        with requests_made() as requests:
            async with sessions() as session:
                session.add(Shelf(name="A", books=[Book(title="x"), Book(title="y")]))
                await session.commit()
        assert len(requests) == 3
        async with sessions() as session:
            await read_and_write(session)
        async with sessions() as session:
            session.add(Shelf(name="A"))
            with pytest.raises(sa.exc.IntegrityError):
                await session.flush()
            await session.rollback()
            assert await session.scalar(sa.select(sa.func.count()).select_from(Shelf)) == 2
        async with engine.connect() as connection:
            streamed = await connection.stream(sa.text("select g from generate_series(1, 20000) g"))
            assert sum([row.g async for row in streamed]) == 20000 * 20001 // 2
        async with engine.connect() as connection, sessions() as session:
            for each in (connection, session):
                assert (await each.execute(sa.text("select g from generate_series(1, 3) g"))).scalars().all() == [
                    1,
                    2,
                    3,
                ]
        assert await conflict(sessions) == "40001"
        autocommit = create_async_engine(f"{scheme}://{location}&autocommit=true")
        async with autocommit.connect() as connection:
            insert = sa.text("insert into shelves (name) values (:name)")
            done = await connection.execute(insert, [{"name": "y"}, {"name": "z"}])
            assert done.rowcount == 2
            await connection.commit()
        await autocommit.dispose()
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)
        await engine.dispose()

    asyncio.run(main())


async def read_and_write(session: AsyncSession) -> None:
    shelf = (await session.scalars(sa.select(Shelf).options(selectinload(Shelf.books)))).one()
    assert [book.title for book in shelf.books] == ["x", "y"]
    shelf.name = "B"
    shelf.books.append(Book(title="z"))
    assert await session.scalar(sa.select(sa.func.count()).select_from(Book)) == 3
    async with session.begin_nested() as nested:
        session.add(Shelf(name="gone"))
        await session.flush()
        await nested.rollback()
    session.add(Shelf(name="A"))
    await session.commit()
    assert sorted(await session.scalars(sa.select(Shelf.name))) == ["A", "B"]


async def conflict(sessions: async_sessionmaker[AsyncSession]) -> str | None:
    async with sessions() as first, sessions() as second:
        for session in (first, second):
            shelf = (await session.scalars(sa.select(Shelf).where(Shelf.name.startswith("A")))).one()
            shelf.name += "!"
        await first.commit()
        with pytest.raises(sa.exc.OperationalError) as caught:
            await second.commit()
        return getattr(caught.value.orig, "sqlstate", None)
