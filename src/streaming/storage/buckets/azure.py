"""Opening a container of Azure Blob Storage, or a file system of its Data Lake, which is one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from streaming.storage.buckets.azure_settings import AzureIdentity, AzureSettings, azure_settings
from streaming.storage.buckets.client_options import NO_RETRIES, client_options
from streaming.storage.buckets.instance_metadata import is_azure_machine
from streaming.storage.buckets.store import BucketStore
from streaming.storage.common.diagnosis import Access
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.url import Bucket

# Set for the client, which would otherwise choose among the credentials in its environment.
_CREDENTIAL_TYPES: Final = {
    AzureIdentity.KEY: "access_key",
    AzureIdentity.SAS: "sas_token",
    AzureIdentity.TOKEN: "bearer_token",
    AzureIdentity.CLIENT: "client_secret",
    AzureIdentity.ENVIRONMENT_KEY: "access_key",
    AzureIdentity.ENVIRONMENT_SAS: "sas_token",
    AzureIdentity.ENVIRONMENT_TOKEN: "bearer_token",
    AzureIdentity.ENVIRONMENT_CLIENT: "client_secret",
    AzureIdentity.WORKLOAD: "workload_identity",
    AzureIdentity.CLI: "azure_cli",
    AzureIdentity.MACHINE: "managed_identity",
}


def open_azure(location: Bucket, settings: StoreSettings) -> BucketStore:
    """Open a container, by any scheme of Azure."""
    options = options_for(location, settings.options)
    found = azure_settings(location, settings.environment, options)
    is_unsure = found.identity is AzureIdentity.MACHINE and not found.is_machine_sure
    if is_unsure and not is_azure_machine(found.metadata_endpoint):
        found = replace(found, identity=AzureIdentity.NOBODY, credentials={})
    access = Access(
        location.shown, found.endpoint, found.identity.value, has_credentials=found.identity.has_credentials
    )
    http = client_options(settings, options, endpoint=found.endpoint)

    def connect() -> Any:
        from obstore.store import AzureStore

        return AzureStore(
            found.place.container,
            prefix=found.place.prefix or None,
            client_options=http,
            retry_config=NO_RETRIES,
            **_arguments(found),
        )

    return BucketStore(access, connect)


def _arguments(found: AzureSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "account_name": found.account,
        "endpoint": found.endpoint,
        "skip_signature": not found.identity.has_credentials,
        **found.credentials,
    }
    if found.identity in _CREDENTIAL_TYPES:
        arguments["credential_type"] = _CREDENTIAL_TYPES[found.identity]
    return arguments
