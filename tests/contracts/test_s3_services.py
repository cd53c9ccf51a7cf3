"""Alibaba's OSS and Cloudflare's R2 speak S3's protocol; SeaweedFS takes their place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from streaming.errors import ObjectForbiddenError, OptionError
from streaming.storage.buckets.s3_services import S3Service, oss, r2
from streaming.storage.open_stores import Stores
from streaming.storage.store import Store
from streaming.storage.url import parse_remote
from streaming.testing.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from streaming.testing.store_contract import StoreContract
from support.http_double import HttpDouble, Reply, Request
from support.servers import started

_numbers = itertools.count()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    yield from started(S3Server.started())


class TestOss(StoreContract):
    """oss:// with its variables, but with the bucket in the path, as SeaweedFS demands."""

    @pytest.fixture
    def store(self, s3: S3Server) -> Store:
        variables = {
            "OSS_ENDPOINT": s3.endpoint,
            "OSS_ACCESS_KEY_ID": ACCESS_KEY,
            "OSS_ACCESS_KEY_SECRET": SECRET_KEY,
            "NO_PROXY": "127.0.0.1",
        }
        remote = f"oss://{s3.bucket}/place {next(_numbers)}"
        return Stores(variables).open(parse_remote(remote), 20.0, {"virtual_hosted_style": False})


class TestR2(StoreContract):
    """r2:// with its variables."""

    @pytest.fixture
    def store(self, s3: S3Server) -> Store:
        variables = {
            "R2_ENDPOINT_URL": s3.endpoint,
            "R2_ACCESS_KEY_ID": ACCESS_KEY,
            "R2_SECRET_ACCESS_KEY": SECRET_KEY,
            "NO_PROXY": "127.0.0.1",
        }
        return Stores(variables).open(parse_remote(f"r2://{s3.bucket}/place {next(_numbers)}"), 20.0)


class Anything(HttpDouble):
    """A proxy that answers as if every object existed."""

    def answer(self, request: Request) -> Reply:
        moment = "Wed, 21 Oct 2015 07:28:00 GMT"
        return Reply(200, b"abc", {"ETag": '"1"', "Last-Modified": moment})


def test_oss_requests_go_to_the_buckets_host() -> None:
    """OSS takes no other requests. A proxy sees the host."""
    with Anything.started() as proxy:
        variables = {"OSS_ACCESS_KEY_ID": "k", "OSS_ACCESS_KEY_SECRET": "s"}
        options = {"proxy": proxy.url, "endpoint": "http://s3.oss-cn-beijing.aliyuncs.com"}
        assert Stores(variables).open(parse_remote("oss://my-bucket/p"), 20.0, options).head("a").n_bytes == 3
        (request,) = proxy.requests
    assert request.raw_path == "http://my-bucket.s3.oss-cn-beijing.aliyuncs.com/p/a"
    assert "/cn-beijing/s3/aws4_request" in request.headers["Authorization"]


def test_endpoints_come_from_options_and_variables() -> None:
    """Options come first, then the service's variables, and for R2 the AWS variables of its documentation."""

    def found(service: S3Service) -> tuple[str, str]:
        return service.endpoint, service.region

    assert found(oss({}, {"OSS_REGION": "cn-hangzhou"})) == ("https://s3.oss-cn-hangzhou.aliyuncs.com", "cn-hangzhou")
    assert found(oss({"region": "oss-cn-hangzhou"}, {}))[0] == "https://s3.oss-cn-hangzhou.aliyuncs.com"
    internal = "oss-ap-southeast-1-internal.aliyuncs.com"
    assert found(oss({}, {"OSS_ENDPOINT": internal})) == (f"https://{internal}", "ap-southeast-1")
    assert oss({}, {"OSS_REGION": "r"}).is_virtual_hosted
    assert found(r2({}, {"R2_ACCOUNT_ID": "id"})) == ("https://id.r2.cloudflarestorage.com", "auto")
    aws = {"S3_ENDPOINT_URL": "https://id.eu.r2.cloudflarestorage.com"}
    assert found(r2({}, aws))[0] == aws["S3_ENDPOINT_URL"]
    assert found(r2({"endpoint": "https://x"}, aws | {"R2_ACCOUNT_ID": "id"}))[0] == "https://x"
    for ask, words in ((oss, "OSS_REGION"), (r2, "R2_ACCOUNT_ID")):
        with pytest.raises(OptionError, match=words):
            ask({}, {})
        with pytest.raises(OptionError, match="endpoint"):
            ask({"endpoint": "x"}, {})


def test_keys_come_from_options_and_variables(s3: S3Server) -> None:
    """Options win over variables; errors say which keys were used, but never their values."""

    def identity(remote: str, variables: dict[str, str], **options: Any) -> str:
        asked = {"endpoint": s3.endpoint, "virtual_hosted_style": False, **options}
        with pytest.raises(ObjectForbiddenError) as caught:
            Stores(variables | {"NO_PROXY": "127.0.0.1"}).open(
                parse_remote(f"{remote}://{s3.bucket}/p"), 20.0, asked
            ).head("a")
        assert "not-to-be-seen" not in str(caught.value)
        return str(caught.value)

    secret = "not-to-be-seen"
    mine = {"access_key_id": "k", "secret_access_key": secret}
    assert "keys of storage_options" in identity(
        "oss", {"OSS_ACCESS_KEY_ID": "k", "OSS_ACCESS_KEY_SECRET": "s"}, **mine
    )
    alibaba = {"ALIBABA_CLOUD_ACCESS_KEY_ID": "k", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": secret}
    assert "ALIBABA_CLOUD_ACCESS_KEY_ID" in identity("oss", alibaba)
    assert "AWS_ACCESS_KEY_ID" in identity("r2", {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": secret})
    assert "R2_ACCESS_KEY_ID and R2_SECRET_ACCESS_KEY are not set" in identity("r2", {})
    assert "`anonymous`" in identity("r2", {}, anonymous=True)
    for wrong in ({"access_key_id": "k"}, mine | {"anonymous": True}):
        with pytest.raises(OptionError):
            Stores({}).open(parse_remote("r2://b/p"), 1.0, {"endpoint": s3.endpoint, **wrong})
