"""The environment variables that are part of a fetcher's identity."""

from __future__ import annotations

from streaming.storage.environment import variables_of_stores


def test_the_variables_of_stores_are_found() -> None:
    """Proxies in upper or lower case, credentials and certificates count; variables that differ by rank do not."""
    environment = {
        "AWS_ACCESS_KEY_ID": "k",
        "https_proxy": "p",
        "HTTP_PROXY": "q",
        "HOME": "/h",
        "S3_ENDPOINT_URL": "e",
        "SSL_CERT_FILE": "c",
        "RANK": "3",
        "CUDA_VISIBLE_DEVICES": "1",
        "PATH": "/bin",
    }
    names = [name for name, _ in variables_of_stores(environment)]
    assert names == ["AWS_ACCESS_KEY_ID", "HOME", "HTTP_PROXY", "S3_ENDPOINT_URL", "SSL_CERT_FILE", "https_proxy"]
