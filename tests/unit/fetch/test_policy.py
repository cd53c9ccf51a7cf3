"""The rules of the policy, one by one. The laws over random schedules are in `properties`."""

from __future__ import annotations

from streaming.fetch.decide.transfers import FetchLimits, FileDemand, TransferLedger

LIMITS = FetchLimits(n_transfers=2, grace_s=2.0, first_grace_s=10.0, rest_s=5.0)


def new(limits: FetchLimits = LIMITS) -> TransferLedger[str]:
    policy = TransferLedger[str](limits, 0.0)
    policy.opened("job")
    return policy


def absent(*names: str) -> list[tuple[str, bool]]:
    return [(name, False) for name in names]


def drain(policy: TransferLedger[str], now_s: float = 0.0) -> list[str]:
    """All that would be moved, in order, each at once successful."""
    order = []
    while begun := policy.take().begun:
        for name in begun:
            order.append(name)
            policy.finished(name, now_s)
    return order


def test_the_first_of_every_reader_comes_before_the_second_of_any() -> None:
    """By place in the list, then by age."""
    policy = new()
    policy.announced("job", "r0", absent("a0", "a1", "a2"), 0)
    policy.announced("job", "r1", absent("b0", "a1", "b2"), 0)
    assert drain(policy) == ["a0", "b0", "a1", "a2", "b2"]


def test_what_is_waited_for_comes_first() -> None:
    """Before all lists, in the order of asking."""
    policy = new()
    policy.announced("job", "r0", absent("a0", "a1", "a2"), 0)
    assert policy.wanted("z", 0) is None
    assert policy.wanted("a2", 0) is None
    assert drain(policy) == ["z", "a2", "a0", "a1"]


def test_no_more_move_than_may() -> None:
    """The next begins when one has ended."""
    policy = new()
    policy.announced("job", "r0", absent("a", "b", "c"), 0)
    assert policy.take().begun == ["a", "b"]
    assert policy.take().begun == []
    policy.finished("b", 0)
    assert policy.take().begun == ["c"]


def test_a_new_list_replaces_the_old() -> None:
    """What only the old one had is not fetched; what is on disk neither."""
    policy = new()
    policy.announced("job", "r0", absent("a", "b", "c"), 0)
    policy.announced("job", "r0", [("c", False), ("d", True), ("e", False)], 0)
    assert drain(policy) == ["c", "e"]
    policy.announced("job", "r0", [], 0)
    assert policy.n_known == 0


def test_lists_outlive_their_connection_but_not_their_job() -> None:
    """Two seconds after the job's last connection nothing of it is begun."""
    policy = new()
    policy.opened("job")
    policy.opened("other")
    policy.announced("job", "r0", absent("a", "b", "c"), 0)
    policy.closed("job", 1)
    policy.passed(100)
    assert policy.take().begun == ["a", "b"]
    policy.closed("job", 100)
    policy.passed(101.9)
    assert policy.next_moment_s() == 102
    policy.opened("job")
    policy.closed("job", 103)
    policy.passed(104)
    policy.finished("a", 104)
    assert policy.take().begun == ["c"]
    policy.passed(105)
    for name in ("b", "c"):
        policy.finished(name, 105)
    assert policy.n_known == 0
    assert not policy.is_over(1000)


def test_the_end_comes_after_the_last_connection() -> None:
    """And, for one who never came, a little later."""
    policy = TransferLedger[str](LIMITS, 0.0)
    assert not policy.is_over(9.9)
    assert policy.is_over(10)
    policy.opened("job")
    assert not policy.is_over(1000)
    policy.closed("job", 1000)
    assert policy.next_moment_s() == 1002
    assert not policy.is_over(1001.9)
    assert policy.is_over(1002)


def test_a_failure_stands_for_a_while_and_then_is_forgotten() -> None:
    """Who waits soon after gets it without a new try; who waits later has it tried again."""
    policy, failure = new(), RuntimeError("gone")
    policy.announced("job", "r0", absent("a"), 0)
    assert policy.take().begun == ["a"]
    policy.finished("a", 1, failure=failure)
    assert policy.wanted("a", 5.9) is failure
    policy.announced("job", "r0", absent("a"), 5.9)
    assert policy.take().begun == []
    policy.passed(6)
    assert policy.wanted("a", 6) is None
    assert policy.take().begun == ["a"]
    policy.finished("a", 7)
    policy.released("a")
    policy.announced("job", "r0", [], 7)
    assert policy.n_known == 0


def test_a_file_that_was_deleted_is_fetched_again() -> None:
    """Presence is what the disk says when asked, not what was true once."""
    policy = new()
    policy.announced("job", "r0", absent("a", "b"), 0)
    assert drain(policy) == ["a", "b"]
    assert policy.wanted("a", 0) is None
    assert drain(policy) == ["a"]
    policy.released("a")
    policy.announced("job", "r0", absent("b"), 0)
    assert drain(policy) == ["b"]


def test_the_queue_does_not_grow_with_lists_that_were_replaced() -> None:
    """A reader that announces for ever, while nothing moves."""
    policy = new(FetchLimits(n_transfers=0))
    for k in range(500):
        policy.announced("job", "r0", absent(*(f"{k}-{i}" for i in range(100))), 0)
    assert policy.n_known == 100
    assert policy.n_queued < 2000


def test_what_has_no_room_holds_up_what_comes_after_it_but_not_what_is_waited_for() -> None:
    """Else small files would take the room for which a large one waits; who waits is told at once."""
    policy = new()
    policy.announced("job", "r0", absent("large", "small"), 0)
    assert policy.take(lambda name, place: name != "large").begun == []
    assert policy.wanted("large", 0) is None
    taken = policy.take(lambda name, place: name != "large")
    assert (taken.begun, taken.without_room) == ([], ["large"])
    assert policy.take().begun == ["large", "small"]


def test_an_evicted_file_comes_again_for_the_lists_that_have_it() -> None:
    """At its place in each; without a list it is forgotten."""
    policy = new()
    policy.announced("job", "r0", [("a", True), ("b", False), ("c", True)], 0)
    policy.evicted("c")
    policy.evicted("a")
    policy.evicted("unknown")
    assert drain(policy) == ["a", "b", "c"]
    policy.announced("job", "r0", [], 0)
    assert policy.n_known == 0


def test_how_soon_a_file_is_needed_is_its_first_place_in_any_list() -> None:
    """And what a reader has open, or somebody waits for, is held."""
    policy = new()
    policy.announced("job", "r0", absent("a", "b", "a"), 0, first=5)
    policy.announced("job", "r1", absent("b"), 0, held=["c", "c"])
    policy.wanted("d", 0)
    standings = [policy.standing(name) for name in "abcde"]
    assert standings == [
        FileDemand(5, False),
        FileDemand(0, False),
        FileDemand(None, True),
        FileDemand(None, True),
        FileDemand(None, False),
    ]
    assert set(policy.changed()) == set("abcd")
    assert policy.changed() == []
    policy.announced("job", "r1", [], 0)
    assert set(policy.changed()) == {"b", "c"}
    assert (policy.standing("b"), policy.standing("c")) == (FileDemand(6, False), FileDemand(None, False))


def test_a_job_that_is_gone_has_no_list() -> None:
    """What was begun for it may end later, and then wants more: nobody would ever take that back."""
    policy = new()
    policy.closed("job", 0)
    policy.passed(2)
    policy.announced("job", "r0", absent("a"), 2)
    assert policy.take().begun == []
    assert policy.n_known == 0


def test_what_was_given_up_has_its_turn_again_if_somebody_wants_it_by_now() -> None:
    """Waited for or in a list; else it is forgotten."""
    policy = new()
    policy.announced("job", "r0", absent("a", "b"), 0)
    assert policy.take().begun == ["a", "b"]
    policy.announced("job", "r0", [], 0)
    assert [policy.is_wanted(name) for name in "ab"] == [False, False]
    assert policy.wanted("b", 0) is None
    for name in "ab":
        policy.abandoned(name, 0)
    assert drain(policy) == ["b"]
    policy.released("b")
    assert policy.n_known == 0
