"""How options and environment combine for a bucket of Google."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import OptionError
from streaming.storage.buckets.gcs_settings import GcsIdentity, gcs_settings
from streaming.storage.buckets.s3_settings import AccessKeys

NOWHERE = {"HOME": "/nowhere"}


def test_credentials_are_looked_up_in_one_order(tmp_path: Path) -> None:
    """The predecessor's HMAC keys come first, then Google's own chain; each counts only without those before it."""
    file = tmp_path / "account.json"
    file.write_text(json.dumps({"type": "service_account"}))
    home = tmp_path / "home"
    (home / ".config" / "gcloud").mkdir(parents=True)
    (home / ".config" / "gcloud" / "application_default_credentials.json").write_text('{"type": "authorized_user"}')
    login, named = {"HOME": str(home)}, {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    hmac, token = {"GCS_KEY": "k", "GCS_SECRET": "s"}, {"GOOGLE_BEARER_TOKEN": "t"}
    emulator = {"STORAGE_EMULATOR_HOST": "h:1"}
    cases = [
        (login | named | token | hmac | {"GOOGLE_SKIP_SIGNATURE": "true"}, GcsIdentity.UNSIGNED),
        (login | named | token | hmac, GcsIdentity.ENVIRONMENT_HMAC),
        (login | named | token | {"GCS_KEY": "k"}, GcsIdentity.ENVIRONMENT_TOKEN),
        (login | named | emulator, GcsIdentity.ENVIRONMENT_FILE),
        (login | {"GOOGLE_SERVICE_ACCOUNT": str(file)}, GcsIdentity.ENVIRONMENT_FILE),
        (login | emulator, GcsIdentity.LOGIN),
        (NOWHERE | {"CLOUDSDK_CONFIG": str(home / ".config" / "gcloud")}, GcsIdentity.LOGIN),
        (NOWHERE | emulator, GcsIdentity.EMULATOR),
        (NOWHERE, GcsIdentity.MACHINE),
    ]
    for environment, expected in cases:
        assert gcs_settings(environment).identity is expected, environment


def test_the_endpoint_is_googles_by_default() -> None:
    """An option, a variable, or the variable of an emulator, which has no scheme, can change it."""
    emulator = NOWHERE | {"STORAGE_EMULATOR_HOST": "127.0.0.1:9023"}
    assert gcs_settings(NOWHERE).endpoint == "https://storage.googleapis.com"
    assert gcs_settings(emulator).endpoint == "http://127.0.0.1:9023"
    assert gcs_settings(emulator | {"GOOGLE_BASE_URL": "https://h/"}).endpoint == "https://h"
    assert gcs_settings(emulator, {"endpoint": "http://o"}).endpoint == "http://o"


@pytest.mark.parametrize(
    ("options", "identity"),
    [
        ({"access_key_id": "k", "secret_access_key": "s"}, GcsIdentity.HMAC),
        ({"token": "t"}, GcsIdentity.TOKEN),
        ({"service_account_key": "{}"}, GcsIdentity.FILE),
        ({"anonymous": True}, GcsIdentity.ANONYMOUS),
    ],
)
def test_options_win_over_the_environment(options: dict[str, Any], identity: GcsIdentity) -> None:
    """Whatever the environment holds."""
    settings = gcs_settings({"GCS_KEY": "other", "GCS_SECRET": "other", **NOWHERE}, options)
    assert settings.identity is identity
    assert settings.keys == (AccessKeys("k", "s") if identity is GcsIdentity.HMAC else None)


def test_credentials_files_that_the_client_cannot_read_are_recognized(tmp_path: Path) -> None:
    """Those kinds need Google's own library."""
    for kind, needed in {
        "service_account": None,
        "authorized_user": None,
        "external_account": "external_account",
    }.items():
        (tmp_path / "file.json").write_text(json.dumps({"type": kind}))
        settings = gcs_settings({"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "file.json")})
        assert settings.needs_google_auth == needed
    with pytest.raises(OptionError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        gcs_settings(NOWHERE, {"service_account_file": str(tmp_path / "file.json")})
    (tmp_path / "file.json").write_text("[]")
    with pytest.raises(OptionError, match="JSON object"):
        gcs_settings(NOWHERE, {"service_account_file": str(tmp_path / "file.json")})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"access_key_id": "k"}, "go together"),
        ({"token": "t", "anonymous": True}, "give one of"),
        ({"service_account_file": "/no/such/file"}, "cannot be read"),
        ({"endpoint": "h"}, "http://"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, Any], words: str) -> None:
    """The error says what would be accepted."""
    with pytest.raises(OptionError, match=words):
        gcs_settings(NOWHERE, options)


def test_settings_show_no_secret() -> None:
    """Their `repr` can be printed."""
    for options in ({"token": "HIDDEN"}, {"service_account_key": "HIDDEN"}):
        assert "HIDDEN" not in repr(gcs_settings(NOWHERE, options))
    assert "HIDDEN" not in repr(gcs_settings({"GCS_KEY": "k", "GCS_SECRET": "HIDDEN"}))
