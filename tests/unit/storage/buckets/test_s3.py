"""How options and environment combine for a bucket of S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming.errors import OptionError
from streaming.storage.buckets.s3_settings import AccessKeys, S3Identity, s3_settings
from streaming.storage.settings import StoreSettings

KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/nowhere"}


def test_the_predecessors_endpoint_wins() -> None:
    """Next come the variable for S3, and that for all of AWS; without any, the endpoint is AWS itself."""
    urls = {
        "S3_ENDPOINT_URL": "http://a",
        "AWS_ENDPOINT_URL_S3": "https://b/",
        "AWS_ENDPOINT_URL": "https://c",
    }
    seen = []
    while True:
        settings = s3_settings("bucket", KEYS | urls)
        seen.append((settings.endpoint, settings.shown_endpoint))
        if not urls:
            break
        urls.pop(next(iter(urls)))
    assert seen == [
        ("http://a", "http://a"),
        ("https://b", "https://b"),
        ("https://c", "https://c"),
        (None, "https://s3.us-east-1.amazonaws.com"),
    ]
    with pytest.raises(OptionError, match="http"):
        s3_settings("bucket", KEYS | {"S3_ENDPOINT_URL": "localhost:9000"})


def test_credentials_are_looked_up_as_aws_does(tmp_path: Path) -> None:
    """Each source counts only if those before it are absent."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[default]\n")
    home, empty = {"HOME": str(tmp_path)}, {"HOME": "/nowhere"}
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": "f", "AWS_ROLE_ARN": "r"}
    container = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "u"}
    cases = [
        (KEYS | home | web | {"AWS_SKIP_SIGNATURE": "true"}, S3Identity.UNSIGNED),
        (KEYS | home | web | {"AWS_PROFILE": "p"}, S3Identity.KEYS),
        (home | web, S3Identity.WEB_IDENTITY),
        (home | container, S3Identity.PROFILE),
        (empty | {"AWS_PROFILE": "p"}, S3Identity.PROFILE),
        (empty | {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / ".aws" / "credentials")}, S3Identity.PROFILE),
        (empty | container, S3Identity.CONTAINER),
        (empty, S3Identity.INSTANCE),
        (empty | {"AWS_EC2_METADATA_DISABLED": "true"}, S3Identity.NOBODY),
        (empty | {"AWS_ACCESS_KEY_ID": "half"}, S3Identity.INSTANCE),
    ]
    for environment, expected in cases:
        assert s3_settings("bucket", environment).identity is expected, environment


def test_other_variables_are_honoured() -> None:
    """They set regions, buckets whose requester pays, and the ACL of uploads."""
    environment = KEYS | {
        "AWS_DEFAULT_REGION": "eu-west-1",
        "MOSAICML_STREAMING_AWS_REQUESTER_PAYS": "one,two",
        "S3_CANNED_ACL": "public-read",
    }
    settings = s3_settings("two", environment)
    assert (settings.region, settings.requester_pays, settings.canned_acl) == ("eu-west-1", True, None)
    assert not s3_settings("three", environment).requester_pays
    assert s3_settings("two", environment, for_uploads=True).canned_acl == "public-read"
    assert s3_settings("two", KEYS).region is None


def test_options_win_over_the_environment() -> None:
    """Neither keys nor a session token of the environment are mixed with keys of the options."""
    environment = KEYS | {"AWS_SESSION_TOKEN": "t", "AWS_REGION": "here", "S3_ENDPOINT_URL": "http://a"}
    options = {"access_key_id": "mine", "secret_access_key": "too", "region": "there", "endpoint": "https://b/"}
    settings = s3_settings("bucket", environment, options)
    assert (settings.keys, settings.region, settings.endpoint) == (
        AccessKeys("mine", "too", None),
        "there",
        "https://b",
    )
    assert settings.identity is S3Identity.OPTIONS
    assert s3_settings("bucket", environment).keys == AccessKeys("k", "s", "t")
    anonymous = s3_settings("bucket", environment, {"anonymous": True})
    assert (anonymous.keys, anonymous.identity, anonymous.endpoint) == (None, S3Identity.ANONYMOUS, "http://a")
    profile = s3_settings("bucket", environment, {"profile": "p"})
    assert (profile.keys, profile.identity) == (None, S3Identity.PROFILE)
    assert profile.profile is not None
    assert profile.profile.name == "p"
    assert s3_settings("bucket", environment, {"requester_pays": True}).requester_pays


@pytest.mark.parametrize(
    "options",
    [
        {"access_key_id": "k"},
        {"secret_access_key": "s"},
        {"session_token": "t"},
        {"access_key_id": "k", "secret_access_key": "s", "anonymous": True},
        {"access_key_id": "k", "secret_access_key": "s", "profile": "p"},
        {"profile": "p", "anonymous": True},
        {"endpoint": "localhost:9000"},
        {"endpoint": "http://"},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str | bool]) -> None:
    """So is half of a pair of keys."""
    with pytest.raises(OptionError, match="storage_options"):
        s3_settings("bucket", KEYS, options)


def test_settings_show_no_secret() -> None:
    """Their `repr` can be printed."""
    secrets = {"AWS_SECRET_ACCESS_KEY": "SECRETVALUE", "AWS_SESSION_TOKEN": "SECRETVALUE"}
    assert "SECRETVALUE" not in repr(s3_settings("bucket", KEYS | secrets))
    assert "SECRETVALUE" not in repr(StoreSettings({"a": "SECRETVALUE"}, secrets, 1.0))
