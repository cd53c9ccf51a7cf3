"""How often one file is asked for in vain, over all ways to it: the rules at the head of the module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from streaming.errors import (
    CredentialsWantedError,
    NoRoomError,
    ObjectForbiddenError,
    ObjectMissingError,
    StorageError,
    StoreBusyError,
    StoreUnreachableError,
    TransferDamagedError,
)
from streaming.fetch.decide.transfers import Account, FileKey
from streaming.fetch.transfer.retry_budget import RetryBudget, RetryBudgets
from streaming.storage.url import Folder

KEY = FileKey(Folder("/remote"), "/local", "shard")
ACCOUNT = Account("{}", "", 3, 60.0)
PERMANENT = [ObjectMissingError, ObjectForbiddenError]
PASSING = [StoreBusyError, StoreUnreachableError, TransferDamagedError]


class Clock:
    """A clock that moves when it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budgets(clock: Clock) -> RetryBudgets:
    return RetryBudgets(clock)


@pytest.fixture
def budget(budgets: RetryBudgets) -> RetryBudget:
    return budgets.of(KEY, ACCOUNT)


def request(budget: RetryBudget, error: StorageError | None = None) -> bool:
    """Ask for the file. Whether a request was made, instead of saying again what is known."""
    made = False
    with contextlib.suppress(StorageError if error is None else type(error)), budget.request():
        made = True
        if error is not None:
            raise error
    return made


@pytest.mark.parametrize("kind", PERMANENT)
def test_a_permanent_refusal_costs_one_request(budget: RetryBudget, clock: Clock, kind: type[StorageError]) -> None:
    """Every way hears of it, and each gets an object of its own."""
    assert request(budget, kind("no"))
    for _ in range(5):
        with pytest.raises(kind, match="no"):
            budget.request().__enter__()
    clock.now_s += 61  # nobody heard it
    assert request(budget)


@pytest.mark.parametrize("kind", PERMANENT)
def test_soon_after_a_client_heard_of_it_the_file_is_asked_for_again(
    budget: RetryBudget, budgets: RetryBudgets, clock: Clock, kind: type[StorageError]
) -> None:
    assert request(budget, kind("no"))
    budgets.heard(KEY, ACCOUNT)
    assert not request(budget)
    clock.now_s += 2.1
    assert request(budget)


@pytest.mark.parametrize("kind", PASSING)
def test_attempts_count_over_all_ways(budget: RetryBudget, clock: Clock, kind: type[StorageError]) -> None:
    """The last error says how many there were, and the count begins anew after its rest."""
    assert [request(budget, kind("busy")) for _ in range(5)] == [True, True, True, False, False]
    with pytest.raises(kind, match=r"busy \(attempt 3 of 3\)"):
        budget.request().__enter__()
    clock.now_s += 2.1
    assert [request(budget, kind("busy")) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("kind", PASSING)
def test_what_comes_ends_the_count(budget: RetryBudget, kind: type[StorageError]) -> None:
    for _ in range(10):
        assert request(budget, kind("busy"))
        assert request(budget, kind("busy"))
        assert request(budget)
        budget.came()


def test_one_error_is_counted_once(budget: RetryBudget) -> None:
    """Also if several ways report it."""
    error = StoreBusyError("busy")
    assert request(budget, error)
    for _ in range(5):
        assert budget.failed(error) is None
    assert budget.failed(TransferDamagedError("cut")) is None
    assert isinstance(budget.failed(TransferDamagedError("cut again")), TransferDamagedError)


def test_a_connection_that_breaks_under_many_ranges_is_one_failure(budget: RetryBudget) -> None:
    """Requests that were under way at the same time fail as one, once something has come."""
    assert request(budget)
    under_way = [budget.request() for _ in range(20)]
    for block in under_way:
        block.__enter__()
    for block in under_way:
        error = StoreUnreachableError("reset")
        assert not block.__exit__(type(error), error, None)  # it is raised on
    assert request(budget)


@pytest.mark.parametrize("error", [CredentialsWantedError(), NoRoomError("full"), KeyboardInterrupt()])
def test_what_says_nothing_of_the_file_counts_nothing(budget: RetryBudget, error: BaseException) -> None:
    for _ in range(5):
        with pytest.raises(type(error)), budget.request():
            raise error
    assert request(budget)


def refused(budget: RetryBudget) -> None:
    assert request(budget, ObjectMissingError("no"))


def used_up(budget: RetryBudget) -> None:
    for _ in range(3):
        assert request(budget, StoreBusyError("busy"))


@pytest.mark.parametrize("come_to_an_end", [refused, used_up])
def test_a_new_job_is_told_nothing_of_the_past(
    budget: RetryBudget, budgets: RetryBudgets, come_to_an_end: Callable[[RetryBudget], Any]
) -> None:
    """It has all of its attempts, for its own files."""
    come_to_an_end(budget)
    budgets.forgive(lambda key: key.local == "/elsewhere")
    assert not request(budget)
    budgets.forgive(lambda key: key == KEY)
    assert [request(budget, StoreBusyError("busy")) for _ in range(4)] == [True, True, True, False]


def test_accounts_know_nothing_of_each_other(budgets: RetryBudgets) -> None:
    other = Account("{}", "another", 3, 60.0)
    refused(budgets.of(KEY, ACCOUNT))
    assert not request(budgets.of(KEY, ACCOUNT))
    assert request(budgets.of(KEY, other))
    budgets.forget(KEY, ACCOUNT)
    assert request(budgets.of(KEY, ACCOUNT))
