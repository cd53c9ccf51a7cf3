"""Keys, endpoints and regions from AWS's own files, as AWS's tools take them; a real S3 server checks them."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from streaming.errors import ObjectForbiddenError, OptionError
from streaming.fetch.client import FetchClient
from streaming.storage.open_stores import Stores
from streaming.storage.url import parse_remote
from streaming.testing import S3Server
from support.answers import AnswerServer, Question, Reply
from support.fetching import stream_config

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

CONTENT = b"what is stored"


@dataclass(frozen=True)
class Surroundings:
    """A user without variables of AWS, a server that knows one pair of keys, and one that hands them out."""

    server: S3Server
    giver: AnswerServer
    home: Path
    key: str
    secret: str
    set: Callable[[str, str], None]

    def write(self, text: str, name: str = "config") -> None:
        """Write a file of AWS's; `@key`, `@secret`, `@endpoint`, `@home` stand for what they say."""
        path = self.home / ".aws" / name
        path.parent.mkdir(exist_ok=True)
        words = {"@key": self.key, "@secret": self.secret, "@endpoint": self.server.endpoint, "@home": str(self.home)}
        for word, value in words.items():
            text = text.replace(word, value)
        path.write_text(text)

    def read(self, options: dict[str, str] | None = None) -> bytes:
        """Read the object through a fetcher."""
        remote = self.server.url("aws-profiles")
        with FetchClient(str(self.home / "cache"), [stream_config(remote, str(self.home / "cache"))]) as client:
            return client.read_object(parse_remote(remote), "object", options=json.dumps(options or {}))


@pytest.fixture
def user(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    for name in list(os.environ):
        if name.startswith(("AWS_", "S3_")):
            monkeypatch.delenv(name)
    variables = s3_server.variables()
    (tmp_path / "object").write_bytes(CONTENT)
    Stores(variables).open(parse_remote(s3_server.url("aws-profiles")), 60.0).put("object", str(tmp_path / "object"))
    key, secret = variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"]
    for name, value in variables.items():
        if name not in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "S3_ENDPOINT_URL"):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with AnswerServer.started() as giver:
        giver.reply = lambda question: _given(question, key, secret)
        yield Surroundings(s3_server, giver, tmp_path, key, secret, monkeypatch.setenv)


def _given(question: Question, key: str, secret: str) -> Reply:
    """What AWS's services for SSO and roles answer."""
    if question.target.startswith("/federation/credentials"):
        assert question.headers["x-amz-sso_bearer_token"] == "the-token"
        keys = {"accessKeyId": key, "secretAccessKey": secret, "sessionToken": "", "expiration": 4e12}
        return Reply(200, {"Content-Type": "application/json"}, json.dumps({"roleCredentials": keys}).encode())
    if b"AssumeRole" in question.body:
        until = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken></SessionToken>"
            f"<Expiration>{until}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )
        return Reply(200, {"Content-Type": "text/xml"}, text.encode())
    return Reply(404)


def _keys_in_config(user: Surroundings) -> None:
    user.write("[default]\naws_access_key_id = @key\naws_secret_access_key = @secret\nendpoint_url = @endpoint\n")


def _keys_in_credentials(user: Surroundings) -> None:
    user.write("[default]\naws_access_key_id = @key\naws_secret_access_key = @secret\n", "credentials")
    user.write("[default]\nendpoint_url = @endpoint\n")


def _process(user: Surroundings) -> None:
    answer = json.dumps({"Version": 1, "AccessKeyId": user.key, "SecretAccessKey": user.secret})
    (user.home / "give").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (user.home / "give").chmod(0o700)
    user.write("[default]\ncredential_process = @home/give\nendpoint_url = @endpoint\n")


def _config_elsewhere(user: Surroundings) -> None:
    _keys_in_config(user)
    (user.home / ".aws" / "config").rename(user.home / "elsewhere")
    user.set("AWS_CONFIG_FILE", "~/elsewhere")


def _credentials_elsewhere(user: Surroundings) -> None:
    _keys_in_credentials(user)
    (user.home / ".aws" / "credentials").rename(user.home / "elsewhere")
    user.set("AWS_SHARED_CREDENTIALS_FILE", str(user.home / "elsewhere"))


def _named(user: Surroundings) -> None:
    user.write(
        "[default]\nregion = nowhere\nendpoint_url = http://127.0.0.1:9\n"
        "[profile work]\naws_access_key_id = @key\naws_secret_access_key = @secret\nendpoint_url = @endpoint\n"
    )
    user.set("AWS_PROFILE", "work")


def _named_by_the_older_variable(user: Surroundings) -> None:
    _named(user)
    user.set("AWS_PROFILE", "")
    user.set("AWS_DEFAULT_PROFILE", "work")


def _name_in_quotes(user: Surroundings) -> None:
    user.write(
        '[profile "my work"]\naws_access_key_id = @key\naws_secret_access_key = @secret\nendpoint_url = @endpoint\n'
    )
    user.set("AWS_PROFILE", "my work")


def _services(user: Surroundings) -> None:
    user.write(
        "[default]\naws_access_key_id = @key\naws_secret_access_key = @secret\nservices = mine\n"
        "endpoint_url = http://127.0.0.1:9\n[services mine]\nsts =\n  endpoint_url = http://127.0.0.1:9\n"
        "s3 =\n  endpoint_url = @endpoint\n  addressing_style = path\n"
    )


def _keys_of_the_environment(user: Surroundings) -> None:
    """Of the file, only the endpoint is used."""
    user.write("[default]\ncredential_process = /bin/false\nendpoint_url = @endpoint\n")
    user.set("AWS_ACCESS_KEY_ID", user.key)
    user.set("AWS_SECRET_ACCESS_KEY", user.secret)


def _variable_over_file(user: Surroundings) -> None:
    _keys_in_config(user)
    user.write((user.home / ".aws" / "config").read_text().replace(user.server.endpoint, "http://127.0.0.1:9"))
    user.set("AWS_ENDPOINT_URL_S3", user.server.endpoint)


def _sso(user: Surroundings) -> None:
    user.write(
        "[default]\nsso_session = mine\nsso_account_id = 123456789012\nsso_role_name = reader\n"
        "endpoint_url = @endpoint\n"
        "[sso-session mine]\nsso_region = us-east-1\nsso_start_url = https://example.com/start\n"
    )
    until = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    cache = user.home / ".aws" / "sso" / "cache"
    cache.mkdir(parents=True)
    token = {"accessToken": "the-token", "expiresAt": until, "startUrl": "https://example.com/start"}
    (cache / f"{hashlib.sha1(b'mine').hexdigest()}.json").write_text(json.dumps(token))
    user.set("AWS_ENDPOINT_URL_SSO", user.giver.url)


def _role(user: Surroundings) -> None:
    user.write(
        "[default]\nrole_arn = arn:aws:iam::123456789012:role/reader\nsource_profile = base\nregion = us-east-1\n"
        "endpoint_url = @endpoint\n"
        "[profile base]\naws_access_key_id = other\naws_secret_access_key = other\n"
    )
    user.set("AWS_ENDPOINT_URL_STS", user.giver.url)


WAYS = [
    _keys_in_config,
    _keys_in_credentials,
    _process,
    _config_elsewhere,
    _credentials_elsewhere,
    _named,
    _named_by_the_older_variable,
    _name_in_quotes,
    _services,
    _keys_of_the_environment,
    _variable_over_file,
    _sso,
    _role,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_a_profile_counts_as_for_every_tool_of_aws(user: Surroundings, way: Callable[[Surroundings], None]) -> None:
    """Keys and endpoint come from the files, and the server takes them."""
    way(user)
    assert user.read() == CONTENT


def test_an_option_names_a_profile(user: Surroundings) -> None:
    """With its endpoint, whatever the environment names."""
    _named(user)
    user.set("AWS_PROFILE", "other")
    assert user.read({"profile": "work"}) == CONTENT


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "no AWS profile gives any"),
        ("[default]\nregion = us-east-1\n", "no AWS profile gives any"),
        ("[profile other]\naws_access_key_id = k\naws_secret_access_key = s\n", "no AWS profile gives any"),
        (
            "[default]\naws_access_key_id = k\naws_secret_access_key = s\n",
            "profile 'default' of this user (config-file)",
        ),
        ("[default]\ncredential_process = /bin/false\n", "profile 'default' gives no credentials"),
        ("[default]\nsso_session = gone\nsso_account_id = 1\nsso_role_name = r\n", "profile 'default' gives no"),
    ],
)
def test_a_refusal_says_truly_with_which_credentials(user: Surroundings, config: str | None, words: str) -> None:
    """Whatever the files hold, the error says what was used of them."""
    if config is not None:
        user.write(config)
    user.set("S3_ENDPOINT_URL", user.server.endpoint)
    with pytest.raises(ObjectForbiddenError) as refused:
        user.read()
    assert words in str(refused.value)


def test_a_file_that_is_none_names_its_line_and_no_content(user: Surroundings) -> None:
    """It may hold secrets."""
    user.write("[default]\naws_secret_access_key = fine\nS3CR3T without a sign\n")
    with pytest.raises(OptionError, match=r"config cannot be read .*line 3") as refused:
        user.read()
    assert "S3CR3T" not in str(refused.value)
