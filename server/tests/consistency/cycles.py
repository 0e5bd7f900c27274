"""Cycles in a graph whose edges have kinds: whether there are any, and a short one to show.

Owns the search. Every question is about edges of some kinds only, given as a mask. Nothing here is recursive, and
everything but the choice of what to show is linear or nearly so: histories have 50,000 transactions and more.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping

Successors = Mapping[int, Mapping[int, int]]

# Nodes whose descendants are found in one go, as one number of so many bits.
_BLOCK_BITS = 4096


def components(successors: Successors, kinds: int, within: Collection[int] | None = None) -> list[list[int]]:
    """The strongly connected components, by Tarjan, each after those that it leads to."""
    nodes = successors.keys() if within is None else within
    inside = frozenset(nodes)
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        path: list[tuple[int, Iterator[int]]] = []
        entered: int | None = root
        while entered is not None or path:
            if entered is not None:
                index[entered] = low[entered] = len(index)
                stack.append(entered)
                on_stack.add(entered)
                path.append((entered, _targets(successors, entered, kinds, inside)))
                entered = None
            node, targets = path[-1]
            for target in targets:
                if target not in index:
                    entered = target
                    break
                if target in on_stack and index[target] < low[node]:
                    low[node] = index[target]
            else:
                path.pop()
                if path and low[node] < low[path[-1][0]]:
                    low[path[-1][0]] = low[node]
                if low[node] == index[node]:
                    found.append(_unwind(stack, on_stack, node))
    return found


def _unwind(stack: list[int], on_stack: set[int], root: int) -> list[int]:
    component: list[int] = []
    while not component or component[-1] != root:
        component.append(stack.pop())
        on_stack.discard(component[-1])
    return component


def _targets(successors: Successors, node: int, kinds: int, inside: Collection[int]) -> Iterator[int]:
    return (target for target, mask in successors[node].items() if mask & kinds and target in inside)


def circular(successors: Successors, kinds: int, within: Collection[int] | None = None) -> list[list[int]]:
    """The components that hold a cycle; nothing leads from a node to itself."""
    return [component for component in components(successors, kinds, within) if len(component) > 1]


def shortest_path(successors: Successors, kinds: int, start: int, end: int, within: Collection[int]) -> list[int]:
    """The nodes of a shortest path, its start and end included; empty if there is none."""
    came_from: dict[int, int] = {start: start}
    waiting = deque([start])
    inside = frozenset(within)
    while waiting and end not in came_from:
        node = waiting.popleft()
        for target in _targets(successors, node, kinds, inside):
            if target not in came_from:
                came_from[target] = node
                waiting.append(target)
    if end not in came_from:
        return []
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


def returning(
    successors: Successors, kinds: int, pairs: list[tuple[int, int]], within: Collection[int]
) -> set[tuple[int, int]]:
    """Of some edges, those from whose end a path of these kinds leads back to their start.

    A component's nodes all lead to the same; going through the components from the last to the first, each leads
    to what its successors lead to. That is a set of bits, for as many starts at a time as one block holds.
    """
    parts = components(successors, kinds, within)
    part_of = {node: number for number, part in enumerate(parts) for node in part}
    onward = [
        {part_of[target] for node in part for target in _targets(successors, node, kinds, part_of)} - {number}
        for number, part in enumerate(parts)
    ]
    starts = sorted({part_of[start] for start, _ in pairs})
    found: set[tuple[int, int]] = set()
    for first in range(0, len(starts), _BLOCK_BITS):
        bit = {part: 1 << place for place, part in enumerate(starts[first : first + _BLOCK_BITS])}
        reached: list[int] = []
        for number, targets in enumerate(onward):
            bits = bit.get(number, 0)
            for target in targets:
                bits |= reached[target]
            reached.append(bits)
        found |= {pair for pair in pairs if reached[part_of[pair[1]]] & bit.get(part_of[pair[0]], 0)}
    return found
