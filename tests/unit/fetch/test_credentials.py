"""What users' functions give, and how long it is used."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.errors import CredentialsWantedError, OptionError
from streaming.fetch.transfer.credential_cache import CredentialCache
from streaming.fetch.wire.credentials import Credentials, call_provider, credentials_key_of


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1, 1000)), min_size=1, max_size=20), st.integers(0, 99))
def test_what_has_expired_is_never_given_out(steps: list[tuple[float, float]], seed: int) -> None:
    """However long they live and whenever they come: what `get` gives holds now, and is wanted anew before it ends."""
    now_s = 1000.0
    credential_cache = CredentialCache(clock=lambda: now_s, rng=random.Random(seed))
    expires_s = 0.0
    for wait_s, life_s in steps:
        now_s += wait_s
        if expires_s <= now_s:
            with pytest.raises(CredentialsWantedError, match=r"job\.0"):
                credential_cache.get("job.0")
            assert credential_cache.due(["job.0"]) == ["job.0"]
        else:
            assert credential_cache.get("job.0") == {"token": expires_s}
        expires_s = now_s + life_s
        credential_cache.put("job.0", Credentials({"token": expires_s}, expires_s))
        assert credential_cache.due(["job.0"]) == []
        now_s = expires_s - 1e-3 * life_s
        assert credential_cache.due(["job.0"]) == ["job.0"]
        assert credential_cache.get("job.0") == {"token": expires_s}


def test_renewals_are_spread() -> None:
    """Machines that got their credentials at one moment do not all ask again at one moment."""
    moments = set()
    for seed in range(20):
        passed_s = [0.0]
        credential_cache = CredentialCache(clock=lambda passed_s=passed_s: passed_s[0], rng=random.Random(seed))  # type: ignore[misc]
        credential_cache.put("job.0", Credentials({}, 3600.0))
        while not credential_cache.due(["job.0"]):
            passed_s[0] += 1.0
        moments.add(passed_s[0])
    assert len(moments) > 10
    assert all(2900 < moment < 3400 for moment in moments)


def test_what_a_job_had_goes_with_it() -> None:
    """Other jobs keep theirs."""
    credential_cache = CredentialCache()
    for job in ("a", "ab"):
        credential_cache.put(credentials_key_of(job, 0), Credentials({}))
    credential_cache.forget("a")
    assert credential_cache.due([credentials_key_of("a", 0), credentials_key_of("ab", 0)]) == [
        credentials_key_of("a", 0)
    ]


@pytest.mark.parametrize(
    ("expires_at", "expected"),
    [
        (None, float("inf")),
        (1e9, 1e9),
        (datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC), 1893456000.0),
        ("2030-01-01T00:00:00+00:00", 1893456000.0),
    ],
)
def test_the_end_may_be_said_in_several_ways(expires_at: object, expected: float) -> None:
    """Seconds, a datetime, a text in ISO form, or not at all."""
    got = call_provider(lambda: {"token": "t", "expires_at": expires_at}, "stream 0")
    assert (got.options, got.expires_s) == ({"token": "t"}, expected)


@pytest.mark.parametrize("given", [None, "secret", {"token": object()}, {"token": "t", "expires_at": []}])
def test_what_is_no_credentials_is_refused(given: Any) -> None:
    """With words that do not hold them."""
    with pytest.raises(OptionError, match="stream 3") as caught:
        call_provider(lambda: given, "stream 3")
    assert "secret" not in str(caught.value)


def test_a_function_without_an_end_is_called_once() -> None:
    """What does not expire is never wanted again."""
    credential_cache = CredentialCache(clock=lambda: 1e12)
    calls: list[int] = []

    def give() -> Mapping[str, Any]:
        calls.append(1)
        return {"token": "t"}

    credential_cache.put("job.0", call_provider(give, "stream 0"))
    assert credential_cache.due(["job.0"]) == []
    assert len(calls) == 1
