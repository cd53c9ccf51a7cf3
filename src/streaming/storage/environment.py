"""The environment variables that stores read.

They are part of a fetcher's identity: two jobs in which they differ never share a fetcher. A store that starts to read
another variable adds it here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_PREFIXES: Final = (
    "ALIBABA_",
    "ALIPAN_",
    "ARM_",  # of Azure, which Databricks' SDK reads
    "AWS_",
    "AZURE_",
    "CLOUDFLARE_",
    "CLOUDSDK_",
    "COMPOSER_SFTP_",
    "DATABRICKS_",
    "GCE_",
    "GCS_",
    "GOOGLE_",
    "HADOOP_",
    "HF_",
    "IDENTITY_",  # of Azure, as MSI_
    "HUGGINGFACE_",
    "HUGGING_FACE_",
    "KRB5",
    "MOSAICML_STREAMING_",
    "MSI_",
    "OCI_",
    "OSS_",
    "R2_",
    "S3_",
    "SSL_CERT_",
    "STORAGE_EMULATOR_",
)
_NAMES: Final = frozenset(
    {
        "ALL_PROXY",
        "CURL_CA_BUNDLE",
        "HOME",  # profiles, cached tokens, known hosts
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
        "REQUESTS_CA_BUNDLE",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
    }
)


def variables_of_stores(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables that may change which store answers, or whose credentials are used; sorted by name."""
    return sorted(
        (name, value)
        for name, value in environment.items()
        if (upper := name.upper()) in _NAMES or upper.startswith(_PREFIXES)  # proxies are read in lower case too
    )
