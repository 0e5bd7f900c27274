"""A cell's machines die, are restarted and are cut off, under load: nothing that was acknowledged is lost, nobody is
misled, and soon writes go on.

`make soak PART=failover` runs the full sizes: `PLAINSQL_TEST_FAILOVERS=5`, `PLAINSQL_TEST_PARTITIONS=5`.
"""

import asyncio
import time

import pytest

from server.tests.failover.ha_cell import HaCell
from server.tests.failover.load import Load
from server.tests.failover.machines import Machine
from server.tests.failover.network import Network
from server.tests.failover.partitioned_client import PartitionedClient
from server.tests.load import STALL_S, Node, size

FAILOVERS = size("PLAINSQL_TEST_FAILOVERS", 0)
# The short form has what there is to lose: an engine that dies, and a leader that is cut off.
CRASHES = size("PLAINSQL_TEST_ENGINE_FAILOVERS", 1)
PARTITIONS = size("PLAINSQL_TEST_PARTITIONS", 1)
BACK_WITHIN_S = 30.0
# Without a fail-over, nobody waits longer than this for an ordinary transaction, on a busy machine.
UNDISTURBED_S = 3.0
LIMIT_S = 60.0 + 90.0 * max(FAILOVERS, CRASHES, PARTITIONS)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(2 * LIMIT_S + 120)]


async def restored(cell: HaCell, load: Load) -> None:
    """Returns when the cell is whole again and clients have worked on it."""
    await asyncio.to_thread(cell.wait_until_whole)
    await load.go_on()


@pytest.mark.full  # takes as long as a lock lives; the cut below does as well
async def test_a_leader_whose_machine_dies_is_replaced_and_nothing_is_lost(cell: HaCell, node: Node) -> None:
    async def kill_the_machine(load: Load) -> None:
        for _ in range(FAILOVERS):
            leader = await asyncio.to_thread(cell.leader)
            since_s = time.monotonic()
            leader.kill()
            await load.back_after(since_s)
            await load.go_on()
            leader.start()
            await restored(cell, load)

    load = Load(node, cell.key)
    await load.run(kill_the_machine, LIMIT_S)
    await load.require_clean(f"leading machine killed {FAILOVERS} times")
    assert max(load.back_s) <= BACK_WITHIN_S, cell.story()


async def test_a_leader_whose_engine_is_killed_is_replaced_and_nothing_is_lost(cell: HaCell, node: Node) -> None:
    async def kill_the_engine(load: Load) -> None:
        for _ in range(CRASHES):
            leader = await asyncio.to_thread(cell.leader)
            since_s = time.monotonic()
            leader.kill_postgres()
            await load.back_after(since_s)
            await restored(cell, load)
            assert cell.leader() is not leader, cell.story()

    load = Load(node, cell.key)
    await load.run(kill_the_engine, LIMIT_S)
    await load.require_clean(f"leading engine killed {CRASHES} times")
    assert max(load.back_s) <= BACK_WITHIN_S, cell.story()


@pytest.mark.full  # takes time
async def test_losing_one_of_three_etcds_affects_no_request(cell: HaCell, node: Node) -> None:
    async def kill_an_etcd(load: Load) -> None:
        leader = await asyncio.to_thread(cell.leader)
        leader.kill_etcd()
        # Its lock must be prolonged without it, more than once.
        await asyncio.sleep(8)
        await load.go_on()
        assert cell.leader() is leader
        leader.start_etcd()
        await load.go_on()

    load = Load(node, cell.key)
    await load.run(kill_an_etcd, LIMIT_S)
    await load.require_clean("one etcd of three killed")
    answered = [each for transport in load.transports for each in transport.answered]
    assert {each.reply.code for each in answered} <= {"", "serialization_failure", "deadlock_detected"}
    late = [each for each in answered if each.answered_s - each.sent_s > UNDISTURBED_S + STALL_S]
    # A fail-over would make every client wait. A stall of the machine has once made a single one wait.
    assert len(late) <= 1 < len(load.transports), late


@pytest.mark.full  # takes time
async def test_restarting_all_machines_one_after_the_other_loses_nothing(cell: HaCell, node: Node) -> None:
    async def restart_all(load: Load) -> None:
        leader = await asyncio.to_thread(cell.leader)
        for machine in (*(each for each in cell.machines if each is not leader), leader):
            await asyncio.to_thread(machine.restart_patroni)
            await restored(cell, load)

    load = Load(node, cell.key)
    await load.run(restart_all, LIMIT_S)
    await load.require_clean("all machines restarted, one after the other")
    assert load.longest_gap_s() <= BACK_WITHIN_S, cell.story()


async def test_an_isolated_leader_acknowledges_nothing_and_is_replaced(
    cell: HaCell, node: Node, network: Network | None
) -> None:
    """It reaches neither etcd nor the others. Clients reach it, some of them nothing else."""
    if network is None:
        pytest.skip("namespaces take root")

    async def cut_off(load: Load) -> None:
        for number in range(PARTITIONS):
            if number:
                await restored(cell, load)
            leader = await asyncio.to_thread(cell.leader)
            await cut_off_for_a_while(cell, network, leader, load)

    load = Load(node, cell.key)
    await load.run(cut_off, LIMIT_S)
    await load.require_clean(f"leader cut off {PARTITIONS} times")
    assert max(load.back_s) <= BACK_WITHIN_S, cell.story()


async def cut_off_for_a_while(cell: HaCell, network: Network, leader: Machine, load: Load) -> None:
    with PartitionedClient.of(cell, leader) as partitioned:
        await partitioned.has_written()
        since_s = time.monotonic()
        network.cut_off(leader.name)
        try:
            await load.back_after(since_s)
            new = await asyncio.to_thread(cell.leader)
            assert new is not leader
            await load.go_on()
            assert not await asyncio.to_thread(partitioned.finds_a_leader), "two servers lead"
        finally:
            network.join(leader.name)
        await load.go_on()
        partitioned.stop()
    assert partitioned.acknowledged_after(since_s) == [], "acknowledged by a leader that was none"
    with cell.connect(database=partitioned.database) as admin:
        there = {row[0] for row in admin.execute("select n from partitioned").fetchall()}
    assert set(partitioned.acknowledged) <= there, "lost"


@pytest.mark.full  # takes as long as a lock lives
async def test_a_leader_that_vanishes_is_replaced_and_nothing_is_lost(
    cell: HaCell, node: Node, network: Network | None
) -> None:
    """Nobody gets an answer from it, nor an error: who talked to it must notice by themselves."""
    if network is None:
        pytest.skip("namespaces take root")

    async def vanish(load: Load) -> None:
        for _ in range(PARTITIONS):
            leader = await asyncio.to_thread(cell.leader)
            since_s = time.monotonic()
            network.vanish(leader.name)
            try:
                await load.back_after(since_s)
                await load.go_on()
            finally:
                network.come_back(leader.name)
            await restored(cell, load)

    load = Load(node, cell.key)
    await load.run(vanish, LIMIT_S)
    await load.require_clean(f"leader vanished {PARTITIONS} times")
    assert max(load.back_s) <= BACK_WITHIN_S, cell.story()
