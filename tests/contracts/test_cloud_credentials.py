"""The clouds' chains of credentials, each against a service on loopback that plays the cloud's.

The client library reads some variables from its process, so these tests set them there as well.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from streaming.errors import (
    CredentialsExpiredError,
    ObjectForbiddenError,
    OptionError,
    StoreBusyError,
    StoreUnreachableError,
)
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.testing.program import find_program
from streaming.testing.web import WebServer
from support.answers import AnswerServer, Question, Reply
from support.servers import started

ABOUT = {"ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "GCS_", "STORAGE_", "S3_", "IDENTITY_", "MSI_")


@pytest.fixture
def answers() -> Iterator[AnswerServer]:
    with AnswerServer.started() as server:
        yield server


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without any account."""
    for name in list(os.environ):
        if name.startswith(PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def opened(
    monkeypatch: pytest.MonkeyPatch, remote: str, variables: Mapping[str, str], options: Mapping[str, Any] | None = None
) -> Store:
    """Open a store in a process with these variables."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Stores().open(parse_remote(remote), 20.0, options)


def content(store: Store) -> bytes:
    return b"".join(store.get("a").chunks)


def in_hours(hours: float) -> str:
    return (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_json(value: object) -> Reply:
    return Reply(200, {"Content-Type": "application/json"}, json.dumps(value).encode())


def said_who(question: Question) -> Reply:
    """Return an object that holds the authorization of the request."""
    return Reply(200, ABOUT, question.headers.get("authorization", "nobody").encode())


def aws_keys(key: str, hours: float) -> Reply:
    expiry = {"Expiration": in_hours(hours), "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": in_hours(-1)}
    return as_json({"AccessKeyId": key, "SecretAccessKey": "s", "Token": "t", **expiry})


# --- AWS


@pytest.mark.parametrize(("hours", "n_askings"), [(1.0, 1), (-1.0, 4)])
def test_a_machines_keys_are_renewed_when_they_expire_and_not_before(
    answers: AnswerServer, monkeypatch: pytest.MonkeyPatch, hours: float, n_askings: int
) -> None:
    """Four reads need one request for lasting keys; no read is sent with keys known to have expired."""
    n_given: list[str] = []

    def reply(question: Question) -> Reply:
        if question.target == "/latest/api/token":
            return Reply(200, {}, b"token")
        if question.target.endswith("/security-credentials/"):
            return Reply(200, {}, b"role")
        if question.target.endswith("/security-credentials/role"):
            n_given.append(f"key-{len(n_given)}")
            return aws_keys(n_given[-1], hours)
        return said_who(question)

    answers.reply = reply
    variables = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": answers.url, "S3_ENDPOINT_URL": answers.url}
    store = opened(monkeypatch, "s3://bucket/x", {"AWS_REGION": "here", **variables})
    said = [content(store).partition(b"Credential=")[2].partition(b"/")[0].decode() for _ in range(4)]
    assert len(n_given) == n_askings
    assert said == (["key-0"] * 4 if hours > 0 else n_given)


def test_a_containers_credentials_are_requested(
    answers: AnswerServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ECS and EKS give them this way, for the token in a file."""
    (tmp_path / "token").write_text("pod")
    answers.reply = lambda question: aws_keys("of-the-pod", 1) if question.target == "/keys" else said_who(question)
    variables = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{answers.url}/keys",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
        "S3_ENDPOINT_URL": answers.url,
        "AWS_REGION": "here",
    }
    assert b"Credential=of-the-pod/" in content(opened(monkeypatch, "s3://bucket/x", variables))
    assert answers.asked[0].headers["authorization"] == "pod"


def test_a_web_identity_becomes_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The token service, which is reached by https only, gives them; its failure is an error about credentials."""
    keys = "<AccessKeyId>of-the-role</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
    result = f"<Credentials>{keys}<Expiration>{in_hours(1)}</Expiration></Credentials>"
    name = "AssumeRoleWithWebIdentity"
    answer = f"<{name}Response><{name}Result>{result}</{name}Result></{name}Response>"
    more = (
        f"location /sts {{ return 200 '{answer}'; }} location /bucket/ {{ add_header ETag 1; "
        "add_header Last-Modified 'Wed, 21 Oct 2015 07:28:00 GMT'; return 200 $http_authorization; }"
    )
    (tmp_path / "token").write_text("jwt")
    for server in started(WebServer.started(is_encrypted=True, more=more)):
        url = f"https://127.0.0.1:{server.port}"
        variables = {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
            "AWS_ENDPOINT_URL_STS": f"{url}/sts",
            "S3_ENDPOINT_URL": url,
            "AWS_REGION": "here",
            "AWS_CA_BUNDLE": str(server.certificate),
        }
        assert b"Credential=of-the-role/" in content(opened(monkeypatch, "s3://bucket/x", variables))
        gone = {**variables, "AWS_ENDPOINT_URL_STS": "https://127.0.0.1:9/sts"}
        with pytest.raises(StoreUnreachableError, match="no credentials could be had"):  # worth another attempt
            content(opened(monkeypatch, "s3://bucket/x", gone))
        refused = {**variables, "AWS_ENDPOINT_URL_STS": f"{url}/forbidden/sts"}
        with pytest.raises(ObjectForbiddenError, match="no credentials could be had"):
            content(opened(monkeypatch, "s3://bucket/x", refused))


def test_a_profile_is_read_from_its_files(
    answers: AnswerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option or AWS_PROFILE names it; its region counts."""
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = default-key\naws_secret_access_key = s\n"
        "[other]\naws_access_key_id = other-key\naws_secret_access_key = s\n"
    )
    (tmp_path / "config").write_text("[profile other]\nregion = eu-west-9\n")
    answers.reply = said_who
    variables = {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "S3_ENDPOINT_URL": answers.url,
    }
    cases: list[tuple[dict[str, Any], dict[str, str], str]] = [
        ({}, {}, "Credential=default-key/"),
        ({}, {"AWS_PROFILE": "other"}, "Credential=other-key/"),
        ({"profile": "other"}, {}, "Credential=other-key/"),
        ({"profile": "other"}, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}, "Credential=other-key/"),
    ]
    for options, more, expected in cases:
        with monkeypatch.context() as patch:
            content(opened(patch, "s3://bucket/x", variables | more, options))
        signed = answers.asked[-1].headers["authorization"]
        assert expected in signed
        assert ("/eu-west-9/" in signed) is ("other" in expected)
    with pytest.raises(ObjectForbiddenError, match="'nobody'"):
        opened(monkeypatch, "s3://bucket/x", variables, {"profile": "nobody"})


# --- Google


def google_machine(answers: AnswerServer) -> dict[str, str]:
    """Return the variables of a machine whose metadata service, by name and by address, is this server."""
    host = answers.url.partition("://")[2]
    return {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "GOOGLE_BASE_URL": answers.url}


def test_a_token_of_a_machines_google_account_is_requested_once(
    answers: AnswerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any variables, the metadata service names the account and gives a token, which is kept while valid."""
    n_tokens: list[str] = []

    def reply(question: Question) -> Reply:
        if question.target.endswith("/email"):
            return Reply(200, {"Metadata-Flavor": "Google"}, b"robot@project")
        if "/token" in question.target:
            n_tokens.append(question.headers["metadata-flavor"])
            return as_json({"access_token": "from-the-machine", "expires_in": 3600, "token_type": "Bearer"})
        return said_who(question)

    answers.reply = reply
    variables = google_machine(answers)
    store = opened(monkeypatch, "gs://bucket/x", variables)
    assert [content(store) for _ in range(5)] == [b"Bearer from-the-machine"] * 5
    assert n_tokens == ["Google"]


def test_a_metadata_service_that_fails_for_a_while_is_retried(
    answers: AnswerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed renewal is an error that is worth another attempt."""
    fails = [Reply(500), Reply(500)]  # by name and by address

    def reply(question: Question) -> Reply:
        if question.target.endswith("/email"):
            return Reply(200, {"Metadata-Flavor": "Google"}, b"robot@project")
        if "/token" in question.target:
            return (
                fails.pop() if fails else as_json({"access_token": "late", "expires_in": 3600, "token_type": "Bearer"})
            )
        return said_who(question)

    answers.reply = reply
    variables = google_machine(answers)
    store = opened(monkeypatch, "gs://bucket/x", variables)
    with pytest.raises(StoreBusyError, match="no credentials could be had"):
        content(store)
    assert content(store) == b"Bearer late"


@pytest.mark.parametrize("how", ["service_account_file", "service_account_key", "GOOGLE_APPLICATION_CREDENTIALS"])
def test_a_service_account_signs_its_own_token(
    answers: AnswerServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    """Its JSON is a file or a text, given by option or variable."""
    openssl = find_program("openssl", how="install openssl")
    key = subprocess.run([openssl, "genrsa", "2048"], capture_output=True, check=True, text=True).stdout
    account = {
        "type": "service_account",
        "client_email": "robot@project",
        "private_key": key,
        "private_key_id": "1",
        "token_uri": f"{answers.url}/token",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    answers.reply = said_who
    variables = {"GOOGLE_BASE_URL": answers.url}
    options: dict[str, Any] = {}
    if how == "service_account_key":
        options[how] = json.dumps(account)
    elif how == "service_account_file":
        options[how] = str(tmp_path / "account.json")
    else:
        variables[how] = str(tmp_path / "account.json")
    assert content(opened(monkeypatch, "gs://bucket/x", variables, options)).startswith(b"Bearer ey")


def test_an_account_of_another_cloud_is_exchanged_by_googles_own_library(
    answers: AnswerServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The client cannot read this kind of credentials file; mistakes in it are reported when it is used."""
    (tmp_path / "subject").write_text("jwt")
    account = {
        "type": "external_account",
        # A project's credentials would make Google's library request the name of the project.
        "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{answers.url}/token",
        "credential_source": {"file": str(tmp_path / "subject")},
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    issued = "urn:ietf:params:oauth:token-type:access_token"
    token = {"access_token": "exchanged", "issued_token_type": issued, "token_type": "Bearer", "expires_in": 3600}
    answers.reply = lambda question: as_json(token) if question.target == "/token" else said_who(question)
    variables = {"GOOGLE_BASE_URL": answers.url, "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "account.json")}
    assert content(opened(monkeypatch, "gs://bucket/x", variables)) == b"Bearer exchanged"
    assert [question.target for question in answers.asked] == ["/token", "/bucket/x%2Fa"]
    (tmp_path / "account.json").write_text(json.dumps({"type": "external_account"}))
    with pytest.raises(ObjectForbiddenError, match="finds no credentials"):
        opened(monkeypatch, "gs://bucket/x", variables)


# --- Azure


def test_a_token_of_a_machines_azure_identity_is_requested_once(
    answers: AnswerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable names the service."""
    n_tokens: list[str] = []

    def reply(question: Question) -> Reply:
        if question.target.startswith("/msi?"):
            n_tokens.append(question.target)
            ends = str(int(time.time()) + 3600)
            kind = {"resource": "https://storage.azure.com/", "token_type": "Bearer"}
            return as_json({"access_token": "from-the-machine", "expires_on": ends, "expires_in": "3600", **kind})
        return said_who(question)

    answers.reply = reply
    variables = {
        "AZURE_MSI_ENDPOINT": f"{answers.url}/msi",
        "AZURE_ACCOUNT_NAME": "acc",
        "AZURE_STORAGE_ENDPOINT": answers.url,
    }
    store = opened(monkeypatch, "azure://box/x", variables)
    assert [content(store) for _ in range(5)] == [b"Bearer from-the-machine"] * 5
    assert len(n_tokens) == 1


def test_a_login_of_the_azure_cli_is_used(
    answers: AnswerServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program `az` gives a token."""
    token = {"accessToken": "of-the-cli", "expiresOn": "2199-01-01 00:00:00.000000", "tokenType": "Bearer"}
    more = {"expires_on": 7226582400, "subscription": "s", "tenant": "t"}
    (tmp_path / "az").write_text(f"#!/bin/sh\necho '{json.dumps(token | more)}'\n")
    (tmp_path / "az").chmod(0o755)
    (tmp_path / "azureProfile.json").touch()
    answers.reply = said_who
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "AZURE_CONFIG_DIR": str(tmp_path),
        "AZURE_ACCOUNT_NAME": "acc",
        "AZURE_STORAGE_ENDPOINT": answers.url,
    }
    assert content(opened(monkeypatch, "azure://box/x", variables)) == b"Bearer of-the-cli"


def test_a_token_that_is_refused_may_be_renewed(answers: AnswerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has its own kind; new options open a new store with the new token."""
    answers.reply = lambda question: Reply(401) if "old" in question.headers["authorization"] else said_who(question)
    for remote, options in {
        "azure://box/x": {"endpoint": answers.url, "account_name": "acc"},
        "gs://bucket/x": {"endpoint": answers.url},
        f"{answers.url}/x": {},
    }.items():
        with pytest.raises(CredentialsExpiredError, match="renew"):
            content(opened(monkeypatch, remote, {}, {**options, "token": "old"}))
        assert content(opened(monkeypatch, remote, {}, {**options, "token": "new"})) == b"Bearer new"


# --- no account


def test_a_machine_without_an_account_sends_unsigned_requests(
    answers: AnswerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so at once, and a refusal says so; uploads to Google are refused before they begin."""
    aws = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": answers.url, "S3_ENDPOINT_URL": answers.url, "AWS_REGION": "here"}
    google = {"GCE_METADATA_HOST": answers.url.partition("://")[2], "GOOGLE_BASE_URL": answers.url}
    azure = {
        "AZURE_POD_IDENTITY_AUTHORITY_HOST": answers.url,
        "AZURE_STORAGE_ENDPOINT": answers.url,
        "AZURE_ACCOUNT_NAME": "acc",
    }
    answers.reply = lambda question: Reply(403 if "bucket" in question.target else 404)
    for remote, variables in {"s3://bucket/x": aws, "gs://bucket/x": google, "azure://bucket/x": azure}.items():
        with pytest.raises(ObjectForbiddenError, match="no credentials"):
            content(opened(monkeypatch, remote, variables))
        assert "authorization" not in answers.asked[-1].headers
    with pytest.raises(OptionError, match="cannot be written"):
        Stores().open_for_uploads(parse_remote("gs://bucket/x"))
