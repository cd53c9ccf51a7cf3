"""How to reach a container of Azure, from URL, `storage_options` and environment. Pure, but for a look at files.

In `azure://`, `azure-dl://` and `az://` the authority is a container, unless it has a dot, which no container has: then
it is the host of an account, and the container is the first part of the path. So both forms of the predecessor (one for
its reader, one for its writer) work for reading and writing. `abfs(s)://container@account.host/` is Azure's own form. A
file system of Data Lake is a container, and is reached by the same protocol.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from streaming.errors import OptionError
from streaming.storage.common.transport import check_endpoint
from streaming.storage.url import Bucket

_HOST: Final = re.compile(r"(?P<account>[^.:]+)\.(?:(?P<zone>[^.]+)\.)?(?:blob|dfs)(?P<cloud>\..+)", re.IGNORECASE)
_KEYS: Final = ("AZURE_ACCOUNT_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY")
_SAS: Final = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_ACCOUNTS: Final = ("AZURE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_NAME")
_ENDPOINTS: Final = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")

# What `UseDevelopmentStorage=true` stands for; the key is no secret, but the same on every machine.
_EMULATOR: Final = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


class AzureIdentity(enum.Enum):
    """Where the credentials come from; the value completes "asked with …"."""

    ANONYMOUS = "no credentials, as `anonymous` in storage_options demands"
    KEY = "the account key of storage_options"
    SAS = "the SAS token of storage_options"
    TOKEN = "the token of storage_options"
    CLIENT = "the client secret of storage_options"
    ENVIRONMENT_KEY = "the account key of the environment (AZURE_ACCOUNT_ACCESS_KEY and its like)"
    ENVIRONMENT_SAS = "the SAS token of the environment (AZURE_STORAGE_SAS_TOKEN)"
    ENVIRONMENT_TOKEN = "the token AZURE_STORAGE_TOKEN"
    ENVIRONMENT_CLIENT = "the client AZURE_CLIENT_ID with its secret"
    WORKLOAD = "the workload identity of AZURE_FEDERATED_TOKEN_FILE"
    CLI = "the login of the Azure CLI"
    MACHINE = "the managed identity of this machine"
    NOBODY = "no credentials: no AZURE_… key is set for this account, nobody is logged in, and this is no Azure machine"

    @property
    def has_credentials(self) -> bool:
        """Whether requests are signed."""
        return self not in (AzureIdentity.ANONYMOUS, AzureIdentity.NOBODY)


@dataclass(frozen=True, slots=True)
class AzurePlace:
    """The parts of a URL."""

    container: str
    prefix: str
    account: str | None
    endpoint: str | None  # of the account's blobs, if the URL names a host


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """Where the container is, and how to use it. Its `repr` shows no secret."""

    place: AzurePlace
    account: str
    endpoint: str
    identity: AzureIdentity  # MACHINE needs a check, unless `is_machine_sure`
    credentials: Mapping[str, str] = field(repr=False)  # as obstore names them
    is_machine_sure: bool
    metadata_endpoint: str


def azure_place(location: Bucket) -> AzurePlace:
    """Split a URL into account, container and prefix. Raises OptionError.

    >>> azure_place(Bucket("azure", "data.blob.core.windows.net", "train/c4"))
    AzurePlace(container='train', prefix='c4', account='data', endpoint='https://data.blob.core.windows.net')
    >>> azure_place(Bucket("azure", "train", "c4"))
    AzurePlace(container='train', prefix='c4', account=None, endpoint=None)
    """
    container, at, host = location.name.rpartition("@")
    if at:
        return AzurePlace(container, location.prefix, *_account(host, location))
    if "." not in location.name:
        return AzurePlace(location.name, location.prefix, None, None)
    container, _, prefix = location.prefix.partition("/")
    return AzurePlace(container, prefix.strip("/"), *_account(location.name, location))


def azure_settings(
    location: Bucket, environment: Mapping[str, str], options: Mapping[str, Any] | None = None
) -> AzureSettings:
    """Combine the URL, checked options and variables. Raises OptionError."""
    options, place = options or {}, azure_place(location)
    variables = {**environment, **_from_connection_string(environment)}
    theirs = _first(variables, _ACCOUNTS)  # the account whose keys the environment holds
    account = options.get("account_name") or place.account or theirs
    if account is None:
        raise OptionError(
            f"{location.shown} names no account; set AZURE_ACCOUNT_NAME, give `account_name` in storage_options, or "
            f"write {location.scheme}://account.blob.core.windows.net/{place.container}/{place.prefix}"
        )
    if "account_name" in options and place.account not in (None, account):
        raise OptionError(f"{location.shown} and `account_name` in storage_options name two accounts; leave one out")
    endpoint = check_endpoint(options.get("endpoint"), named="`endpoint` in storage_options")
    if endpoint is None:
        endpoint = place.endpoint or check_endpoint(_first(variables, _ENDPOINTS), named=_ENDPOINTS[0])
    identity, credentials = _from_options(options)
    if identity is None:
        identity, credentials = _from_environment(variables, is_theirs=theirs in (None, account))
    return AzureSettings(
        place=place,
        account=account,
        endpoint=endpoint or f"https://{account}.blob.core.windows.net",
        identity=identity,
        credentials=credentials,
        is_machine_sure=bool(_first(variables, ("AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT", "IDENTITY_ENDPOINT"))),
        metadata_endpoint=variables.get("AZURE_POD_IDENTITY_AUTHORITY_HOST") or "http://169.254.169.254",
    )


def _account(host: str, location: Bucket) -> tuple[str, str | None]:
    """Return the account of a host, and the endpoint of its blobs."""
    if "." not in host:
        return host, None
    found = _HOST.fullmatch(host)
    if found:
        zone = f"{found['zone']}." if found["zone"] else ""
        return found["account"], f"https://{found['account']}.{zone}blob{found['cloud']}"
    account, _, rest = host.partition(".")
    if rest in ("blob", "dfs"):
        return account, None
    raise OptionError(
        f"{location.shown}: {host!r} is no host of an account, as in 'account.blob.core.windows.net'; for another host "
        "give `endpoint` and `account_name` in storage_options, and the container alone in the URL"
    )


def _from_options(options: Mapping[str, Any]) -> tuple[AzureIdentity | None, dict[str, str]]:
    client = {"tenant_id", "client_id", "client_secret"}
    forms: list[tuple[AzureIdentity, dict[str, str]]] = []
    if options.get("anonymous"):
        forms.append((AzureIdentity.ANONYMOUS, {}))
    if "account_key" in options:
        forms.append((AzureIdentity.KEY, {"account_key": options["account_key"]}))
    if "sas_token" in options:
        forms.append((AzureIdentity.SAS, {"sas_key": options["sas_token"].removeprefix("?")}))
    if "token" in options:
        forms.append((AzureIdentity.TOKEN, {"token": options["token"]}))
    if given := client & set(options):
        if given != client:
            raise OptionError(f"storage_options: {', '.join(sorted(client))} go together")
        forms.append((AzureIdentity.CLIENT, {name: options[name] for name in client}))
    if len(forms) > 1:
        raise OptionError(
            "storage_options: give one of 'account_key', 'sas_token', 'token', a client with its secret, 'anonymous'"
        )
    return forms[0] if forms else (None, {})


def _from_environment(variables: Mapping[str, str], *, is_theirs: bool) -> tuple[AzureIdentity, dict[str, str]]:
    """Return the first credentials in the environment; keys of another account are not used."""
    if is_theirs and (key := _first(variables, _KEYS)):
        return AzureIdentity.ENVIRONMENT_KEY, {"account_key": key}
    if is_theirs and (sas := _first(variables, _SAS)):
        return AzureIdentity.ENVIRONMENT_SAS, {"sas_key": sas.removeprefix("?")}
    if token := variables.get("AZURE_STORAGE_TOKEN"):
        return AzureIdentity.ENVIRONMENT_TOKEN, {"token": token}
    tenant = variables.get("AZURE_TENANT_ID")
    client = variables.get("AZURE_CLIENT_ID")
    if tenant and client and (secret := variables.get("AZURE_CLIENT_SECRET")):
        found = {"tenant_id": tenant, "client_id": client, "client_secret": secret}
        return AzureIdentity.ENVIRONMENT_CLIENT, found
    if tenant and client and (file := variables.get("AZURE_FEDERATED_TOKEN_FILE")):
        found = {"tenant_id": tenant, "client_id": client, "federated_token_file": file}
        return AzureIdentity.WORKLOAD, found
    if _has_login(variables):
        return AzureIdentity.CLI, {}
    return AzureIdentity.MACHINE, {"client_id": client} if client else {}


def _has_login(variables: Mapping[str, str]) -> bool:
    """Whether a user is logged in with the Azure CLI."""
    home = variables.get("HOME") or os.path.expanduser("~")
    folder = variables.get("AZURE_CONFIG_DIR") or os.path.join(home, ".azure")
    return os.path.isfile(os.path.join(folder, "azureProfile.json")) and shutil.which("az") is not None


def _from_connection_string(environment: Mapping[str, str]) -> dict[str, str]:
    """Return AZURE_STORAGE_CONNECTION_STRING as the variables that it replaces."""
    text = environment.get("AZURE_STORAGE_CONNECTION_STRING", "")
    fields = dict(part.partition("=")[::2] for part in text.split(";") if "=" in part)
    if fields.get("UseDevelopmentStorage", "").lower() == "true":
        fields = _EMULATOR
    elif "BlobEndpoint" not in fields and fields.get("AccountName") and "EndpointSuffix" in fields:
        protocol = fields.get("DefaultEndpointsProtocol", "https")
        fields["BlobEndpoint"] = f"{protocol}://{fields['AccountName']}.blob.{fields['EndpointSuffix']}"
    names = {
        "AccountName": _ACCOUNTS[0],
        "AccountKey": _KEYS[0],
        "SharedAccessSignature": _SAS[0],
        "BlobEndpoint": _ENDPOINTS[0],
    }
    return {name: fields[of] for of, name in names.items() if fields.get(of) and not environment.get(name)}


def _first(variables: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := variables.get(name))), None)
