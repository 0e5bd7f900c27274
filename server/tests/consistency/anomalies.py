"""The names of everything that can be wrong with a history, and one finding.

Owns the vocabulary, which is Adya's where he has a word for it.
"""

from dataclasses import dataclass
from enum import Enum


class AnomalyClass(Enum):
    """What a serializable system whose order agrees with the clock never shows."""

    # Each is seen in one transaction, or in one list.
    GARBAGE = "garbage: a value was read that nobody appended"
    INTERNAL = "internal: a transaction contradicts what it did or saw itself"
    DUPLICATE = "duplicate append: an append took effect twice"
    INCOMPATIBLE = "incompatible orders: two reads of a list disagree about its order"
    LOST = "lost append: an acknowledged append is missing from later reads"
    G1A = "G1a, aborted read: a value was read whose transaction had failed"
    G1B = "G1b, intermediate read: a value was read that its transaction then went beyond"
    # Each is a cycle of transactions, every one of which must come before the next.
    G0 = "G0, write cycle"
    G1C = "G1c, circular information flow"
    G_SINGLE = "G-single, read skew: a cycle with one anti-dependency"
    G2_ITEM = "G2-item, write skew: a cycle with several anti-dependencies"
    REAL_TIME = "real-time order: a transaction took effect before one that had completed when it began"


@dataclass(frozen=True)
class Anomaly:
    """One finding: its class, the transactions that show it, and the story for people."""

    kind: AnomalyClass
    transactions: tuple[int, ...]
    story: str

    def __str__(self) -> str:
        return f"{self.kind.value}\n  " + self.story.replace("\n", "\n  ")
