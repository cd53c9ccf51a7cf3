"""The rules of the ledger of transfers, one by one. The laws over random schedules are in `properties`."""

from __future__ import annotations

from streaming.fetch.decide.transfers import FetchLimits, FileDemand, TransferLedger
from support.wanted import Wanted, absent

LIMITS = FetchLimits(n_transfers=2, grace_s=2.0, first_grace_s=10.0, rest_s=5.0, lease_s=8.0)


def new(limits: FetchLimits = LIMITS) -> TransferLedger[Wanted]:
    ledger = TransferLedger[Wanted](limits, 0.0)
    ledger.opened("job")
    return ledger


def begun(ledger: TransferLedger[Wanted]) -> list[str]:
    """The names of the files that begin now."""
    return [wanted.key for wanted in ledger.take().begun]


def drain(ledger: TransferLedger[Wanted], now_s: float = 0.0) -> list[str]:
    """All that would be moved, in order, each at once successful."""
    order = []
    while names := begun(ledger):
        for name in names:
            order.append(name)
            ledger.finished(name, now_s)
    return order


def test_the_first_of_every_reader_comes_before_the_second_of_any() -> None:
    """By place in the list, then by age."""
    ledger = new()
    ledger.announced("job", "r0", absent(["a0", "a1", "a2"]), 0)
    ledger.announced("job", "r1", absent(["b0", "a1", "b2"]), 0)
    assert drain(ledger) == ["a0", "b0", "a1", "a2", "b2"]


def test_what_is_waited_for_comes_first() -> None:
    """Before all lists, in the order of asking."""
    ledger = new()
    ledger.announced("job", "r0", absent(["a0", "a1", "a2"]), 0)
    assert ledger.subscribe("waiter of z", Wanted("z"), 0) is None
    assert ledger.subscribe("waiter of a2", Wanted("a2"), 0) is None
    assert drain(ledger) == ["z", "a2", "a0", "a1"]


def test_no_more_move_than_may() -> None:
    """The next begins when one has ended."""
    ledger = new()
    ledger.announced("job", "r0", absent(["a", "b", "c"]), 0)
    assert begun(ledger) == ["a", "b"]
    assert begun(ledger) == []
    ledger.finished("b", 0)
    assert begun(ledger) == ["c"]


def test_a_new_list_replaces_the_old() -> None:
    """What only the old one had is not fetched; what is on disk neither."""
    ledger = new()
    ledger.announced("job", "r0", absent(["a", "b", "c"]), 0)
    ledger.announced("job", "r0", [(Wanted("c"), False), (Wanted("d"), True), (Wanted("e"), False)], 0)
    assert drain(ledger) == ["c", "e"]
    ledger.announced("job", "r0", [], 0)
    assert ledger.n_known == 0


def test_lists_outlive_their_connection_but_not_their_job() -> None:
    """Two seconds after the job's last connection nothing of it is begun."""
    ledger = new()
    ledger.opened("job")
    ledger.opened("other")
    ledger.announced("job", "r0", absent(["a", "b", "c"]), 0)
    ledger.closed("job", 1)
    ledger.passed(100)
    assert begun(ledger) == ["a", "b"]
    ledger.closed("job", 100)
    ledger.passed(101.9)
    assert ledger.next_moment_s() == 102
    ledger.opened("job")
    ledger.closed("job", 103)
    ledger.passed(104)
    ledger.finished("a", 104)
    assert begun(ledger) == ["c"]
    ledger.passed(105)
    for name in ("b", "c"):
        ledger.finished(name, 105)
    assert ledger.n_known == 0
    assert not ledger.is_over(1000)


def test_the_end_comes_after_the_last_connection() -> None:
    """And, for one who never came, a little later."""
    ledger = TransferLedger[Wanted](LIMITS, 0.0)
    assert not ledger.is_over(9.9)
    assert ledger.is_over(10)
    ledger.opened("job")
    assert not ledger.is_over(1000)
    ledger.closed("job", 1000)
    assert ledger.next_moment_s() == 1002
    assert not ledger.is_over(1001.9)
    assert ledger.is_over(1002)


def test_a_failure_stands_for_a_while_and_then_is_forgotten() -> None:
    """Who waits soon after gets it without a new try; who waits later has it tried again."""
    ledger, failure = new(), RuntimeError("gone")
    ledger.announced("job", "r0", absent(["a"]), 0)
    assert begun(ledger) == ["a"]
    ledger.finished("a", 1, failure=failure)
    assert ledger.subscribe("waiter of a", Wanted("a"), 5.9) is failure
    ledger.announced("job", "r0", absent(["a"]), 5.9)
    assert begun(ledger) == []
    ledger.passed(6)
    assert ledger.subscribe("waiter of a", Wanted("a"), 6) is None
    assert begun(ledger) == ["a"]
    ledger.finished("a", 7)
    ledger.unsubscribe("waiter of a")
    ledger.announced("job", "r0", [], 7)
    assert ledger.n_known == 0


def test_a_file_that_was_deleted_is_fetched_again() -> None:
    """Presence is what the disk says when asked, not what was true once."""
    ledger = new()
    ledger.announced("job", "r0", absent(["a", "b"]), 0)
    assert drain(ledger) == ["a", "b"]
    assert ledger.subscribe("waiter of a", Wanted("a"), 0) is None
    assert drain(ledger) == ["a"]
    ledger.unsubscribe("waiter of a")
    ledger.announced("job", "r0", absent(["b"]), 0)
    assert drain(ledger) == ["b"]


def test_the_queue_does_not_grow_with_lists_that_were_replaced() -> None:
    """A reader that announces for ever, while nothing moves."""
    ledger = new(FetchLimits(n_transfers=0))
    for k in range(500):
        ledger.announced("job", "r0", absent(f"{k}-{i}" for i in range(100)), 0)
    assert ledger.n_known == 100
    assert ledger.n_queued < 2000


def test_what_has_no_room_holds_up_what_comes_after_it_but_not_what_is_waited_for() -> None:
    """Else small files would take the room for which a large one waits; who waits is told at once."""
    ledger = new()
    ledger.announced("job", "r0", absent(["large", "small"]), 0)
    assert ledger.take(lambda wanted, place: wanted.key != "large").begun == []
    assert ledger.subscribe("waiter of large", Wanted("large"), 0) is None
    taken = ledger.take(lambda wanted, place: wanted.key != "large")
    assert (taken.begun, taken.without_room) == ([], [(Wanted("large"), ["waiter of large"])])
    assert begun(ledger) == ["large", "small"]


def test_an_evicted_file_comes_again_for_the_lists_that_have_it() -> None:
    """At its place in each; without a list it is forgotten."""
    ledger = new()
    ledger.announced("job", "r0", [(Wanted("a"), True), (Wanted("b"), False), (Wanted("c"), True)], 0)
    ledger.evicted("c")
    ledger.evicted("a")
    ledger.evicted("unknown")
    assert drain(ledger) == ["a", "b", "c"]
    ledger.announced("job", "r0", [], 0)
    assert ledger.n_known == 0


def test_how_soon_a_file_is_needed_is_its_first_place_in_any_list() -> None:
    """And what a reader has open, or somebody waits for, is held."""
    ledger = new()
    ledger.announced("job", "r0", absent(["a", "b", "a"]), 0, first=5)
    ledger.announced("job", "r1", absent(["b"]), 0, held=["c", "c"])
    ledger.subscribe("waiter of d", Wanted("d"), 0)
    demands = [ledger.demand_for(name) for name in "abcde"]
    assert demands == [
        FileDemand(5, False),
        FileDemand(0, False),
        FileDemand(None, True),
        FileDemand(None, True),
        FileDemand(None, False),
    ]
    assert set(ledger.changed()) == set("abcd")
    assert ledger.changed() == []
    ledger.announced("job", "r1", [], 0)
    assert set(ledger.changed()) == {"b", "c"}
    assert (ledger.demand_for("b"), ledger.demand_for("c")) == (FileDemand(6, False), FileDemand(None, False))


def test_a_job_that_is_gone_has_no_list() -> None:
    """What was begun for it may end later, and then wants more: nobody would ever take that back."""
    ledger = new()
    ledger.closed("job", 0)
    ledger.passed(2)
    ledger.announced("job", "r0", absent(["a"]), 2)
    assert begun(ledger) == []
    assert ledger.n_known == 0


def test_what_was_given_up_has_its_turn_again_if_somebody_wants_it_by_now() -> None:
    """Waited for or in a list; else it is forgotten."""
    ledger = new()
    ledger.announced("job", "r0", absent(["a", "b"]), 0)
    assert begun(ledger) == ["a", "b"]
    ledger.announced("job", "r0", [], 0)
    assert [ledger.is_wanted(name) for name in "ab"] == [False, False]
    assert ledger.subscribe("waiter of b", Wanted("b"), 0) is None
    for name in "ab":
        ledger.abandoned(name)
    assert drain(ledger) == ["b"]
    ledger.unsubscribe("waiter of b")
    assert ledger.n_known == 0


def test_a_waiter_that_does_not_ask_again_is_forgotten() -> None:
    """It gave up without a word; each time that it asks its lease begins anew."""
    ledger = new()
    assert ledger.subscribe("waiter", Wanted("a"), 0) is None
    assert ledger.subscribe("waiter", Wanted("a"), 7) is None
    assert begun(ledger) == ["a"]
    ledger.passed(14.9)
    assert ledger.is_wanted("a")
    assert ledger.next_moment_s() == 15
    ledger.passed(15)
    assert not ledger.is_wanted("a")
    assert ledger.finished("a", 16) == []
    assert ledger.n_known == 0


def test_a_waiter_waits_for_one_file_at_a_time() -> None:
    """Wanting another ends the wait for the first."""
    ledger = new()
    ledger.subscribe("waiter", Wanted("a"), 0)
    ledger.subscribe("waiter", Wanted("b"), 0)
    assert drain(ledger) == ["b"]
    assert ledger.n_known == 0


def test_a_file_begins_anew_for_the_account_that_has_not_failed() -> None:
    """The one with wrong credentials is told; the other keeps waiting and its list keeps its place."""
    ledger = new()
    ledger.subscribe("wrong", Wanted("a", "wrong"), 0)
    ledger.subscribe("right", Wanted("a", "right"), 0)
    ledger.announced("job", "r0", absent(["b"]), 0)
    assert ledger.take().begun == [Wanted("a", "wrong"), Wanted("b")]
    assert ledger.finished("a", 0, failure="forbidden") == ["wrong"]
    assert ledger.take().begun == [Wanted("a", "right")]
    assert ledger.subscribe("wrong", Wanted("a", "wrong"), 1) == "forbidden"
    assert ledger.finished("a", 1) == ["right"]
    assert ledger.subscribe("wrong", Wanted("a", "wrong"), 1) is None  # it is asked for because it has gone again
