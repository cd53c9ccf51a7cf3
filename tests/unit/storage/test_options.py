"""`storage_options`: a name means the same for every store, and nothing is silently ignored."""

from __future__ import annotations

from typing import Any

import pytest

from streaming.errors import OptionError
from streaming.storage.options import VOCABULARY, OptionKind, checked_options, read_options
from streaming.storage.schemes import known_schemes, scheme_named
from streaming.storage.url import parse_remote

ALL = frozenset(VOCABULARY)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"endpoint_url": "http://h"}, {"endpoint": "http://h"}),
        ({"AWS_ACCESS_KEY_ID": "k", "aws_secret_access_key": "s"}, {"access_key_id": "k", "secret_access_key": "s"}),
        (
            {"key": "k", "secret": "s", "anon": False},
            {"access_key_id": "k", "secret_access_key": "s", "anonymous": False},
        ),
        ({"request_payer": "requester"}, {"requester_pays": True}),
        ({"skip_signature": "true", "region_name": "r"}, {"anonymous": True, "region": "r"}),
        ({"azure_storage_account_name": "a", "sas_key": "s"}, {"account_name": "a", "sas_token": "s"}),
        ({"google_service_account": "/f"}, {"service_account_file": "/f"}),
        ({"connect_timeout": 3, "read_timeout": 2.5}, {"connect_timeout": 3.0, "read_timeout": 2.5}),
        ({"headers": {"X-A": "b"}}, {"headers": {"X-A": "b"}}),
        ({"region": None}, {}),
        ({"region": "r", "aws_region": "r"}, {"region": "r"}),
    ],
)
def test_names_of_other_clients_are_understood(given: dict[str, Any], read: dict[str, Any]) -> None:
    """Each alias, in upper or lower case, is read as its name in the vocabulary."""
    assert read_options(given, ALL, scheme="s3") == read


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpont": "http://h"}, "takes no 'endpont'; it takes access_key_id"),
        ({"region": ""}, "must be a text"),
        ({"region": 3}, "must be a text"),
        ({"anonymous": "perhaps"}, "True or False"),
        ({"connect_timeout": -1}, "seconds"),
        ({"connect_timeout": True}, "seconds"),
        ({"headers": {"a": 1}}, "mapping of texts"),
        ({"headers": ["a"]}, "mapping of texts"),
        ({"region": "a", "region_name": "b"}, "given twice"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, Any], words: str) -> None:
    """The error says what would be accepted."""
    with pytest.raises(OptionError, match=words):
        read_options(given, ALL, scheme="s3")


@pytest.mark.parametrize("name", sorted(name for name, kind in VOCABULARY.items() if kind is OptionKind.SECRET))
def test_no_error_shows_a_secret(name: str) -> None:
    """Whether it has a wrong type, is given twice, or is not taken by the store."""
    wrong: list[tuple[dict[str, Any], frozenset[str]]] = [
        ({name: ["HIDDEN"]}, ALL),
        ({name: "HIDDEN", name.upper(): "HIDDEN2"}, ALL),
        ({name: "HIDDEN"}, frozenset()),
    ]
    for given, takes in wrong:
        with pytest.raises(OptionError) as caught:
            read_options(given, takes, scheme="s3")
        assert "HIDDEN" not in str(caught.value)


@pytest.mark.parametrize("scheme", known_schemes())
def test_every_scheme_takes_names_of_the_vocabulary(scheme: str) -> None:
    """The table lists no other names."""
    row = scheme_named(scheme)
    assert row is not None
    if row.options is not None:
        assert row.options <= set(VOCABULARY)
        with pytest.raises(OptionError, match="; ".join(["takes no 'no-such'", "it takes"])):
            read_options({"no-such": 1}, row.options, scheme=scheme)


def test_options_are_checked_before_they_are_sent() -> None:
    """Options the scheme does not take, and values that are not JSON, are errors; a folder takes none."""
    assert checked_options(parse_remote("s3://b/x"), None) == {}
    assert checked_options(parse_remote("s3://b/x"), {"aws_region": "r"}) == {"aws_region": "r"}
    wrong: list[tuple[str, Any, str]] = [
        ("s3://b/x", {"account_key": "k"}, "s3:// takes no 'account_key'"),
        ("/data", {"region": "r"}, "folder"),
        ("s3://b/x", {"region": object()}, "must be a text"),
        ("s3://b/x", ["region"], "mapping"),
    ]
    for remote, options, words in wrong:
        with pytest.raises(OptionError, match=words):
            checked_options(parse_remote(remote), options)
