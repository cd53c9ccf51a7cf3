"""What all connections share, and what may change while they are open."""

from __future__ import annotations

from dataclasses import dataclass, field

from streaming.testing.faults import Limits
from streaming.testing.proxy_server.pace import Gate, Road
from streaming.testing.proxy_server.rulebook import RuleBook
from streaming.testing.proxy_server.tally import Tally


@dataclass(slots=True)
class Surroundings:
    """Rules, limits and counts, and the roads on which all bytes go."""

    rules: RuleBook = field(default_factory=RuleBook)
    limits: Limits = field(default_factory=Limits)
    tally: Tally = field(default_factory=Tally)
    gate: Gate = field(default_factory=Gate)
    down: Road = field(default_factory=Road)
    up: Road = field(default_factory=Road)
