"""Which rule a request meets: the first that applies."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from streaming.testing.faults import Rule


class RuleBook:
    """Rules in their order, and what they have met so far."""

    def __init__(self, rules: Sequence[Rule] = (), seed: int = 0) -> None:
        self.rules = tuple(rules)
        self.fired = [0] * len(self.rules)
        self._patterns = [re.compile(rule.path) for rule in self.rules]
        self._met: list[set[str]] = [set() for _ in self.rules]
        self._rng = random.Random(seed)

    def meet(self, method: str, path: str, *, ranged: bool) -> int | None:
        """The number of the rule that this request meets, which is counted; None: no rule."""
        for number, rule in enumerate(self.rules):
            if self._applies(number, rule, method, path, ranged):
                self.fired[number] += 1
                if rule.once_per_path:
                    self._met[number].add(path)
                return number
        return None

    def _applies(self, number: int, rule: Rule, method: str, path: str, ranged: bool) -> bool:
        return (
            rule.method in (None, method)
            and rule.ranged in (None, ranged)
            and self._patterns[number].search(path) is not None
            and (rule.times is None or self.fired[number] < rule.times)
            and path not in self._met[number]
            and self._rng.random() < rule.probability  # last, so that chance is drawn for those alone that it decides
        )
