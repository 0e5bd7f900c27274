"""Drill: everything that can be rotated is rotated while clients write, by the commands in docs/operating.md.

Certificates of the planes and of the cell, both authorities, the key that seals secrets, and the logins to the
directory; and the certificate of a node is revoked. There are two data planes and a control plane. Some clients keep
their connections, others open new ones. No request may fail. Each step is complete when new connections use what is
new. `make soak PART=drills` rotates one after the other; the gate rotates everything at once.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from plainsql_server.cli import main
from plainsql_server.directory.sealing.keyring import new_key
from server.tests.customers import Customers
from server.tests.drills.rotation_site import Planes, running_planes, until
from server.tests.drills.writers import DrillLoad, drilled, signing_in
from server.tests.load import Client, size
from server.tests.pki_cell import Pki, running_pki_cell
from server.tests.postgres import Postgres

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1700)]

_ROUNDS = size("PLAINSQL_TEST_DRILL_ROUNDS", 1)


@pytest.fixture
def site(postgres: Postgres, tmp_path: Path) -> Iterator[Planes]:
    with running_planes(postgres, tmp_path) as made:
        yield made


@asynccontextmanager
async def writing(site: Planes, what: str) -> AsyncIterator[DrillLoad]:
    """Clients write within the block. Afterwards, nothing may be lost, and no request may have failed."""
    key = Customers(site.stage.dsn).new_key("write", "admin", organization="acme")
    async with drilled(key, site.ports, trust=site.trust()) as load, signing_in(load, site.control.port):
        await load.more()
        await load.more_controlled()
        yield load
        await load.more()
        await load.more_controlled()
    load.check(site.rows())
    load.show(what, f"{load.controlled} requests for and with sessions")
    assert load.failures == {}, site.failures()


# Old processes end after 1.5 s, and the directory must answer within 2 s. A machine with other work may be slower.
@pytest.mark.timing
async def test_everything_is_rotated_at_once_and_no_request_fails(site: Planes) -> None:
    what = "authorities, certificates, the key and the logins are rotated at once, a certificate is revoked"
    async with writing(site, what) as load:
        old, new = site.keys_file.read_text().strip(), new_key()
        for kind in ("client", "server"):
            site.pki.run("rotate", kind)
        load.trust = site.trust()
        await site.reload_cell()
        site.pki.run("renew", "--all")
        site.keys_file.write_text(f"{old}\n{new}\n")
        previous = site.new_logins()
        await site.reload_cell()
        await site.reload()
        await load.more()
        site.keys_file.write_text(f"{new}\n{old}\n")
        await asyncio.to_thread(site.stage.run, "secrets", "rotate")
        for kind in ("client", "server"):
            site.pki.run("retire", kind)
        load.trust = site.trust()
        site.keys_file.write_text(new)
        site.drop_logins(previous)
        # It starts the second node again, with nothing but what is new.
        await revoke_certificate(site, load)
        await site.check_certificates()
        await create_database(site, load)


async def revoke_certificate(site: Planes, load: DrillLoad) -> None:
    """The second node gets another key, because somebody has a copy of its own. Clients use the first meanwhile."""
    stolen = await asyncio.to_thread(site.steal_certificate)
    load.ports = site.ports[:1]
    # Each client has chosen the second node for the last time, and has its answer.
    await load.more()
    await load.more_controlled(8)
    await asyncio.to_thread(site.data[1].stop)
    site.replace_certificate()
    await site.reload_cell()
    await until(lambda: site.is_refused(stolen))
    await load.more()
    await asyncio.to_thread(site.data[1].start)
    load.ports = site.ports
    await load.more()
    assert await asyncio.to_thread(site.is_refused, stolen)


async def create_database(site: Planes, load: DrillLoad) -> None:
    """The control plane logs in to the cell."""
    async with Client(site.control.port, load.key, trust=load.trust) as client:
        await client.post("/v1/databases", {"name": f"made-{len(load.acknowledged)}"})
        answer = await client.answer()
    assert answer.status == 201, answer


@pytest.mark.full
async def test_everything_is_rotated_one_by_one_and_no_request_fails(site: Planes) -> None:
    what = "authorities, certificates, the key and the logins are rotated one by one, a certificate is revoked"
    async with writing(site, what) as load:
        for _ in range(_ROUNDS):
            await renew_certificates(site, load)
            await replace_client_authority(site, load)
            await replace_server_authority(site, load)
            await replace_key(site, load)
            await replace_logins(site, load)
            await revoke_certificate(site, load)
            await site.check_certificates()
            await create_database(site, load)


async def renew_certificates(site: Planes, load: DrillLoad) -> None:
    """Of the planes and of the cell."""
    site.pki.run("renew", "data-server", "data-2-server", "control-server", "cell")
    await site.reload_cell()
    await site.reload()
    await load.more()
    await site.check_certificates()


async def replace_client_authority(site: Planes, load: DrillLoad) -> None:
    before = site.serials()
    assert before
    site.pki.run("rotate", "client")
    await site.reload_cell()
    site.pki.run("renew", "data", "data-2", "control", "spare")
    await site.reload()
    await load.more()
    await site.check_certificates()
    assert not before & site.serials()
    site.pki.run("retire", "client")
    await site.reload_cell()
    # Their connections are new, so what was retired is not needed.
    await site.reload()
    await load.more()


async def replace_server_authority(site: Planes, load: DrillLoad) -> None:
    site.pki.run("rotate", "server")
    # Clients of the planes get the new servers.crt before the planes get their new certificates.
    load.trust = site.trust()
    await load.more()
    site.pki.run("renew", "data-server", "data-2-server", "control-server", "cell")
    await site.reload_cell()
    await site.reload()
    await load.more()
    site.pki.run("retire", "server")
    load.trust = site.trust()
    await site.reload()
    await load.more()


async def replace_key(site: Planes, load: DrillLoad) -> None:
    old, new = site.keys_file.read_text().strip(), new_key()
    site.keys_file.write_text(f"{old}\n{new}\n")
    await site.reload()
    site.keys_file.write_text(f"{new}\n{old}\n")
    await asyncio.to_thread(site.stage.run, "secrets", "rotate")
    await load.more()
    site.keys_file.write_text(new)
    await site.reload()
    await load.more()


async def replace_logins(site: Planes, load: DrillLoad) -> None:
    previous = site.new_logins()
    await site.reload()
    assert {login for login, _ in site.backends()} == set(site.logins.values())
    site.drop_logins(previous)
    await load.more()


def test_the_drill_would_notice_a_step_that_is_left_out(tmp_path: Path) -> None:
    """A cell that was not reloaded after the authority was added refuses the certificates that are renewed."""
    pki = Pki(tmp_path)
    assert CliRunner().invoke(main, ["pki", "init", str(tmp_path / "pki")]).exit_code == 0
    with running_pki_cell(pki) as cell:
        pki.run("rotate", "client")
        pki.run("renew", "control")
        assert cell.is_refused("control", "unknown ca")
