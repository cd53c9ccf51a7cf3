"""How URL, options and environment combine for a container of Azure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streaming.errors import OptionError
from streaming.storage.buckets.azure_settings import (
    AzureIdentity,
    AzurePlace,
    AzureSettings,
    azure_place,
    azure_settings,
)
from streaming.storage.url import Bucket, parse_remote

KEYS = {"AZURE_ACCOUNT_NAME": "mine", "AZURE_ACCOUNT_ACCESS_KEY": "KEY", "HOME": "/nowhere"}
AZURE = {
    "azure://box/a/b": AzurePlace("box", "a/b", None, None),
    "az://box": AzurePlace("box", "", None, None),
    "azure-dl://box/a": AzurePlace("box", "a", None, None),
    "azure://acc.blob.core.windows.net/box/a b/c": AzurePlace(
        "box", "a b/c", "acc", "https://acc.blob.core.windows.net"
    ),
    "azure://acc.blob.core.windows.net/box": AzurePlace("box", "", "acc", "https://acc.blob.core.windows.net"),
    "azure://acc.blob.core.windows.net/box//a": AzurePlace("box", "a", "acc", "https://acc.blob.core.windows.net"),
    "azure://acc.z13.blob.storage.azure.net/box/a": AzurePlace(
        "box", "a", "acc", "https://acc.z13.blob.storage.azure.net"
    ),
    "azure-dl://acc.dfs.core.chinacloudapi.cn/box/a": AzurePlace(
        "box", "a", "acc", "https://acc.blob.core.chinacloudapi.cn"
    ),
    "azure://acc.blob/box/a": AzurePlace("box", "a", "acc", None),
    "abfs://box@acc.dfs.core.windows.net/a": AzurePlace("box", "a", "acc", "https://acc.blob.core.windows.net"),
    "abfss://box@acc/a": AzurePlace("box", "a", "acc", None),
    "abfs://box/a": AzurePlace("box", "a", None, None),
}


def settings_of(remote: str, environment: dict[str, str], options: dict[str, Any] | None = None) -> AzureSettings:
    location = parse_remote(remote)
    assert isinstance(location, Bucket)
    return azure_settings(location, environment, options)


@pytest.mark.parametrize(("remote", "expected"), AZURE.items())
def test_a_dot_distinguishes_an_account_from_a_container(remote: str, expected: AzurePlace) -> None:
    """Both forms of the predecessor, its reader's and its writer's, name the same place."""
    location = parse_remote(remote)
    assert isinstance(location, Bucket)
    assert azure_place(location) == expected


@pytest.mark.parametrize("remote", ["azure://files.example.com/box/a", "azure://127.0.0.1:10000/acc/box"])
def test_a_host_of_no_account_is_refused(remote: str) -> None:
    """The error says how to name another host."""
    location = parse_remote(remote)
    assert isinstance(location, Bucket)
    with pytest.raises(OptionError, match="`endpoint`"):
        azure_place(location)


def test_the_predecessors_variables_name_account_and_key() -> None:
    """They work like Azure's own; the endpoint is the account's."""
    own = {"AZURE_STORAGE_ACCOUNT_NAME": "mine", "AZURE_STORAGE_ACCOUNT_KEY": "KEY", "HOME": "/nowhere"}
    text = "DefaultEndpointsProtocol=https;AccountName=mine;AccountKey=KEY;EndpointSuffix=core.windows.net"
    for environment in (KEYS, own, {"AZURE_STORAGE_CONNECTION_STRING": text}):
        settings = settings_of("azure://box/a", environment)
        assert (settings.account, settings.endpoint) == ("mine", "https://mine.blob.core.windows.net")
        assert settings.identity is AzureIdentity.ENVIRONMENT_KEY
        assert settings.credentials == {"account_key": "KEY"}


def test_a_key_is_sent_to_its_account_only() -> None:
    """A URL of another account is used without the environment's key."""
    settings = settings_of("azure://other.blob.core.windows.net/box/a", KEYS)
    assert (settings.account, settings.endpoint) == ("other", "https://other.blob.core.windows.net")
    assert settings.credentials == {}
    assert settings_of("azure://mine.blob.core.windows.net/box/a", KEYS).credentials == {"account_key": "KEY"}
    nameless = {"AZURE_ACCOUNT_ACCESS_KEY": "KEY"}
    assert settings_of("azure://any.blob.core.windows.net/box/a", nameless).credentials == {"account_key": "KEY"}


def test_credentials_are_looked_up_in_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source counts only if those before it are absent."""
    (tmp_path / "az").touch(mode=0o755)
    (tmp_path / "azureProfile.json").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    login = {"AZURE_CONFIG_DIR": str(tmp_path)}
    client = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c"}
    base = {"AZURE_ACCOUNT_NAME": "mine", "HOME": "/nowhere"}
    sas, token = {"AZURE_STORAGE_SAS_TOKEN": "?sig=s"}, {"AZURE_STORAGE_TOKEN": "t"}
    secret, file = {"AZURE_CLIENT_SECRET": "s"}, {"AZURE_FEDERATED_TOKEN_FILE": "f"}
    cases = [
        (KEYS | sas | token | client | secret | file | login, AzureIdentity.ENVIRONMENT_KEY),
        (base | sas | token | client | secret | file | login, AzureIdentity.ENVIRONMENT_SAS),
        (base | token | client | secret | file | login, AzureIdentity.ENVIRONMENT_TOKEN),
        (base | client | secret | file | login, AzureIdentity.ENVIRONMENT_CLIENT),
        (base | client | file | login, AzureIdentity.WORKLOAD),
        (base | client | login, AzureIdentity.CLI),
        (base | client, AzureIdentity.MACHINE),
        (base, AzureIdentity.MACHINE),
    ]
    for environment, expected in cases:
        assert settings_of("azure://box/a", environment).identity is expected, environment
    assert settings_of("azure://box/a", base | sas).credentials == {"sas_key": "sig=s"}


@pytest.mark.parametrize(
    ("options", "identity", "credentials"),
    [
        ({"account_key": "k"}, AzureIdentity.KEY, {"account_key": "k"}),
        ({"sas_token": "?sig=s"}, AzureIdentity.SAS, {"sas_key": "sig=s"}),
        ({"token": "t"}, AzureIdentity.TOKEN, {"token": "t"}),
        ({"anonymous": True}, AzureIdentity.ANONYMOUS, {}),
        (
            {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
            AzureIdentity.CLIENT,
            {"tenant_id": "t", "client_id": "c", "client_secret": "s"},
        ),
    ],
)
def test_options_win_over_the_environment(
    options: dict[str, Any], identity: AzureIdentity, credentials: dict[str, str]
) -> None:
    """This holds for credentials, account and endpoint."""
    settings = settings_of("azure://box/a", KEYS, {**options, "account_name": "other", "endpoint": "http://h:1/other/"})
    assert (settings.identity, settings.credentials) == (identity, credentials)
    assert (settings.account, settings.endpoint) == ("other", "http://h:1/other")


@pytest.mark.parametrize(
    ("remote", "environment", "options", "words"),
    [
        ("azure://box/a", {"HOME": "/nowhere"}, {}, "names no account"),
        ("azure://one.blob.core.windows.net/box", KEYS, {"account_name": "two"}, "two accounts"),
        ("azure://box/a", KEYS, {"account_key": "k", "token": "t"}, "give one of"),
        ("azure://box/a", KEYS, {"client_id": "c"}, "go together"),
        ("azure://box/a", KEYS, {"endpoint": "h:1"}, "http://"),
    ],
)
def test_contradictory_options_are_refused(
    remote: str, environment: dict[str, str], options: dict[str, Any], words: str
) -> None:
    """The error names what is missing or superfluous."""
    with pytest.raises(OptionError, match=words):
        settings_of(remote, environment, options)


def test_settings_show_no_secret() -> None:
    """Their `repr` can be printed."""
    assert "KEY" not in repr(settings_of("azure://box/a", KEYS)).replace("ENVIRONMENT_KEY", "").replace("_KEY", "")
