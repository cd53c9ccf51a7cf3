"""Oracle's Object Storage: its own interface against a double, its S3-compatible one against SeaweedFS."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from streaming.errors import (
    CredentialsExpiredError,
    ObjectForbiddenError,
    ObjectMissingError,
    OptionError,
    StoreBusyError,
    TransferDamagedError,
)
from streaming.storage.buckets.store import BucketStore
from streaming.storage.oci.login import OciLogin, oci_login
from streaming.storage.oci.store import OciStore, oci_s3
from streaming.storage.open_stores import Stores, open_store
from streaming.storage.settings import StoreSettings
from streaming.storage.store import Store
from streaming.storage.url import Bucket, parse_remote
from streaming.testing.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from streaming.testing.store_contract import StoreContract
from support.http_double import Reply
from support.oci_double import BUCKET, NAMESPACE, PASSPHRASE, OciDouble
from support.servers import started

# Made for this test. What it signs below was signed by Oracle's SDK (oci 2.189.0), of which nothing else is needed.
_KEY: Final = """-----BEGIN PRIVATE KEY-----
MIICdQIBADANBgkqhkiG9w0BAQEFAASCAl8wggJbAgEAAoGBALoV47yMl1fRkFp9
V0xCaq6Q0lN7MpIYBlLXuU7LhMewiJGD1XSrhu8d02q+8lB4MDnqb9dcmdAnYicn
HGvVR1waoalScNo5hE6EleElAyJeMd/hQ4SHhFqDyNydUVBt050ga31dNhky44ru
HX9mOJRkA66JXsDJ6MmW/aOC39elAgMBAAECgYB+vfv/5w4JnU2hpG86HJ6GyVLH
00hNYxmjgRTQyyNj0yQhYFaZgV6FLJ5bvTRThJjsSXXljEejE7/xhN0BwSE5O/Bk
7REV9FuA9fZTe7a0QNou/76norBTst4lVNq9oU1FRy60lmi4M2eERzVYavd0xubv
uNhKOEnVyZg0lTS+AQJBAN9irs4ypQQXtSbWcqHEGxk24dl24T8IxZp/sCmJJDeG
4b0gfMCBYICFAuDAJ3skT5gt9TKae6V8ID6SnioaGCUCQQDVQRKbeGWGWa7HUZ5A
efrviR8oOOALjAWrQtRU50h6/X9d7MrYLAa+6G3lT/5/7hdfLC2F3RpZV6c4jbew
wOmBAkA+AvYF1bdLYI1wP53I3FitcjfWF5NF3ViFoCa2ERUVuQLXbrpS8ldotgPr
gkwzegwCcdeceZgTg1asKCVyCJZlAkBD+nFPA+sBD7eKK/dRQFEAaGp5LOAmbiUk
ebIrumo9Ym9mZmQm0qn30yms7noHF8N1gCSmxltu3WUdvvcuLeCBAkBsVcUuQ1cr
S8vbmjZ4LKr6MLb9nDO3vQLOjWIF0yEekTPPPvnhUS6u3fYkgv5sqiZunotodSiY
Zs/Vb8eHu5+R
-----END PRIVATE KEY-----
"""
_URL: Final = "https://objectstorage.us-phoenix-1.oraclecloud.com/n/ns/b/bkt/o/a%20b%2Fc?x=1"
_MOMENT_S: Final = 1672954300.0
_SIGNATURES: Final = {
    "GET": (
        "I2oTD47eEWTqKk6PONo/kWv0CghwQNn+8o5nKLGuvjknGRigM7tAxLpSTUhOKEl9K89CZNfAEsX7Ny/FQ1gO5Z"
        "lsPgvlwVbVYzdo7zbXSxr0vWcmMkOj46odwW1wcOi7ItRhM5EUCniujlU639smcpJ+4giZ0SRcdoMksVD4fG4="
    ),
    "PUT": (
        "OFSs8aPiiJAgK5BnryCmy1FvArO47J4kRhH7fBKmG3aJE8brF9buhPIN2tlQjOCRrIDobq/RvdvGbFCmNR7Z7M"
        "JR4gzTOuDdrFtrrsANHXveJN1YKrNBp4PhUzDUIyGooA+dmZiByfei4MCPfoavrtVAKHblAZqd2HUAwu1lY9Y="
    ),
}
_numbers = itertools.count()


@pytest.fixture
def oci() -> Iterator[OciDouble]:
    with OciDouble.started() as oci:
        yield oci


def opened(oci: OciDouble, variables: dict[str, str], remote: str = f"oci://{BUCKET}@{NAMESPACE}/data") -> Store:
    return Stores(variables).open(parse_remote(remote), 20.0, {"endpoint": oci.url})


class TestOci(StoreContract):
    """Oracle's own interface, with a namespace that is requested, and a key with a passphrase."""

    @pytest.fixture
    def store(self, oci: OciDouble, tmp_path: Path) -> Store:
        return opened(oci, oci.configure(tmp_path / "oci", passphrase=PASSPHRASE), f"oci://{BUCKET}/data")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    yield from started(S3Server.started())


class TestOciWithKeys(StoreContract):
    """The S3-compatible interface with a customer secret key; SeaweedFS takes Oracle's place."""

    @pytest.fixture
    def store(self, s3: S3Server) -> Store:
        variables = {"OCI_ACCESS_KEY_ID": ACCESS_KEY, "OCI_SECRET_ACCESS_KEY": SECRET_KEY, "NO_PROXY": "127.0.0.1"}
        remote = f"oci://{s3.bucket}@{NAMESPACE}/place {next(_numbers)}"
        return Stores(variables).open(parse_remote(remote), 20.0, {"endpoint": s3.endpoint})


def test_requests_are_signed_as_by_oracles_sdk() -> None:
    """The signatures are equal byte for byte."""
    login = OciLogin("r", "ocid1.tenancy.t/ocid1.user.u/aa:bb:cc", load_pem_private_key(_KEY.encode(), None), "")
    for method, signature in _SIGNATURES.items():
        assert login.signed(method, _URL, _MOMENT_S) == {
            "Date": "Thu, 05 Jan 2023 21:31:40 GMT",
            "Authorization": (
                'Signature algorithm="rsa-sha256",headers="date (request-target) host",'
                f'keyId="ocid1.tenancy.t/ocid1.user.u/aa:bb:cc",signature="{signature}",version="1"'
            ),
        }


def test_a_session_is_used_by_its_token(oci: OciDouble, tmp_path: Path) -> None:
    """The profile is as `oci session authenticate` writes it."""
    oci.write("data/a", b"abc")
    assert opened(oci, oci.configure(tmp_path / "oci", session_token="ey.J.x")).head("a").n_bytes == 3


def test_a_list_follows_its_pages_and_agrees_with_head(oci: OciDouble, tmp_path: Path) -> None:
    """Whatever their number."""
    for i in range(25):
        oci.write(f"data/{i:02}", bytes(i))
    oci.write("database", b"")
    oci.page_size = 4
    store = opened(oci, oci.configure(tmp_path / "oci"))
    listed = list(store.list())
    assert [facts.name for facts in listed] == [f"{i:02}" for i in range(25)]
    assert listed[7] == store.head("07")


def test_refusals_are_distinguished(oci: OciDouble, tmp_path: Path) -> None:
    """A missing object or bucket, a wrong user, a busy store and a cut body have their kinds of error."""
    variables = oci.configure(tmp_path / "oci")
    oci.write("data/a", os.urandom(1 << 20))
    store = opened(oci, variables)
    with pytest.raises(ObjectMissingError, match="ObjectNotFound"):
        store.get("b")
    with pytest.raises(ObjectMissingError, match="no such bucket"):
        opened(oci, variables, f"oci://other@{NAMESPACE}/data").get("a")
    oci.faults.append(("/o/", Reply(429, b'{"code": "TooManyRequests", "message": "slow"}', {"Retry-After": "2"})))
    with pytest.raises(StoreBusyError, match="TooManyRequests") as caught:
        store.get("a")
    assert (caught.value.is_throttled, caught.value.retry_after_s) == (True, 2.0)
    oci.faults.append(("/o/", Reply(cut_after=1000)))
    with pytest.raises(TransferDamagedError, match="broke"):
        store.get_range("a", 0, 1 << 20)
    oci.key_id = "somebody else"
    with pytest.raises(ObjectForbiddenError, match="profile 'DEFAULT'") as refused:
        store.get("a")
    assert isinstance(refused.value, CredentialsExpiredError)


def test_keys_win_over_the_profile(tmp_path: Path, oci: OciDouble) -> None:
    """Options win over variables; keys and a profile together are an error."""
    config = oci.configure(tmp_path / "oci")
    keys = {"OCI_ACCESS_KEY_ID": "k", "OCI_SECRET_ACCESS_KEY": "s", "OCI_REGION": "eu-frankfurt-1"}

    def store(environment: dict[str, str], **options: str) -> Store:
        return open_store(parse_remote("oci://b@n/p"), StoreSettings(options, environment, 1.0))

    assert isinstance(store(config | keys), BucketStore)
    assert isinstance(store(config | keys, profile="DEFAULT"), OciStore)
    assert isinstance(store(config), OciStore)
    with pytest.raises(OptionError, match="not both"):
        store(config, profile="DEFAULT", access_key_id="k", secret_access_key="s")
    with pytest.raises(OptionError, match="OCI_ACCESS_KEY_ID"):
        store({"HOME": "/nowhere"})


def test_the_s3_endpoint_is_that_of_namespace_and_region() -> None:
    """They come from URL or variables; without them the error says what to set."""

    def endpoint(remote: str, environment: dict[str, str], **options: Any) -> str:
        location = parse_remote(remote)
        assert isinstance(location, Bucket)
        return oci_s3(location, options, environment).endpoint

    expected = "https://n.compat.objectstorage.us-ashburn-1.oraclecloud.com"
    assert endpoint("oci://b@n/p", {"OCI_REGION": "us-ashburn-1"}) == expected
    assert endpoint("oci://b/p", {"OCI_NAMESPACE": "n"}, region="us-ashburn-1") == expected
    assert endpoint("oci://b/p", {}, endpoint="https://x/") == "https://x"
    with pytest.raises(OptionError, match="OCI_NAMESPACE"):
        endpoint("oci://b/p", {"OCI_REGION": "us-ashburn-1"})


def test_faults_of_a_configuration_are_named(tmp_path: Path, oci: OciDouble) -> None:
    """The errors name the profile, the fields or the key."""
    variables = oci.configure(tmp_path / "oci")
    path = Path(variables["OCI_CONFIG_FILE"])
    with pytest.raises(OptionError, match="'other'"):
        oci_login({"profile": "other"}, variables)
    text = path.read_text()
    for line, words in (("region=", "lacks region"), ("user=", "neither user"), ("key_file=", "lacks key_file")):
        path.write_text("\n".join(each for each in text.splitlines() if not each.startswith(line)))
        with pytest.raises(OptionError, match=words):
            oci_login({}, variables)
    path.write_text(text)
    (tmp_path / "oci" / "key.pem").write_text("nonsense")
    with pytest.raises(OptionError, match=r"key\.pem"):
        oci_login({}, variables)
