"""A profile of AWS's own tools, in `~/.aws/config` and `~/.aws/credentials`: what it sets, and the keys that it gives.

The files are read here, for a region and an endpoint need no package. Keys come from botocore, which knows every way to
get them: written there, by `credential_process`, by SSO, by a role.
"""

from __future__ import annotations

import configparser
import datetime
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from streaming.errors import MissingExtraError, ObjectForbiddenError, OptionError
from streaming.storage.buckets.errors import first_line

_GIVES_KEYS: Final = frozenset(
    {
        "aws_access_key_id",
        "credential_process",
        "credential_source",
        "login_session",
        "role_arn",
        "source_profile",
        "sso_account_id",
        "sso_session",
        "sso_start_url",
        "web_identity_token_file",
    }
)
_TRUE: Final = ("1", "true", "yes", "on")
_ASK_AGAIN: Final = datetime.timedelta(minutes=5)
"""botocore renews keys ten minutes before they expire, when it is asked for them."""

Section = Mapping[str, str | Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class AwsProfile:
    """What the files say of one profile. Its `repr` shows no secret."""

    name: str | None  # None: none was named, so it is the default one
    config_file: str
    credentials_file: str
    has_credentials_file: bool
    settings: Section = field(repr=False)
    services: Section = field(repr=False)

    @property
    def gives_keys(self) -> bool:
        """Whether keys can be expected of it, so that no other source is looked for."""
        return self.name is not None or self.has_credentials_file or bool(_GIVES_KEYS & set(self.settings))

    @property
    def region(self) -> str | None:
        """The region that it sets."""
        return _text(self.settings, "region")

    @property
    def endpoint(self) -> str | None:
        """The endpoint that it sets for S3, else for all services."""
        if self.ignores_endpoints:
            return None
        s3 = self.services.get("s3")
        return _text(s3, "endpoint_url") or _text(self.settings, "endpoint_url")

    @property
    def ignores_endpoints(self) -> bool:
        """Whether endpoints in AWS's variables and files are to have no effect."""
        return (_text(self.settings, "ignore_configured_endpoint_urls") or "").lower() in _TRUE

    @property
    def ca_bundle(self) -> str | None:
        """The file of certificates to trust that it names."""
        return _text(self.settings, "ca_bundle")

    @property
    def is_virtual_hosted(self) -> bool:
        """Whether the bucket is to be a part of the host."""
        return _text(self.settings.get("s3"), "addressing_style") == "virtual"


def aws_profile(environment: Mapping[str, str], name: str | None = None) -> AwsProfile:
    """Read the profile `name`, else the one that the environment names, else the default one.

    Raises OptionError for a file that is none of AWS's form; no message holds what stands in it.
    """
    name = name or environment.get("AWS_DEFAULT_PROFILE") or environment.get("AWS_PROFILE") or None
    config_file = _path(environment, "AWS_CONFIG_FILE", "config")
    credentials_file = _path(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials")
    config, credentials = _sections(config_file), _sections(credentials_file)
    section, wanted = name or "default", "default" if name in (None, "default") else f"profile {name}"
    in_config = config.get(wanted, config.get(f"profile {section}", {}))
    settings = {**in_config, **credentials.get(section, {})}
    services = config.get(f"services {_text(settings, 'services')}", {})
    return AwsProfile(name, config_file, credentials_file, os.path.isfile(credentials_file), settings, services)


class ProfileKeys:
    """Gives obstore the keys of a profile, renewed before they expire."""

    def __init__(self, credentials: Any) -> None:
        """Take the credentials of botocore."""
        self._credentials = credentials

    @property
    def source(self) -> str:
        """Where they come from, in botocore's words, such as `sso` or `custom-process`."""
        return str(getattr(self._credentials, "method", "unknown"))

    def __call__(self) -> dict[str, Any]:
        keys = self._credentials.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.datetime.now(datetime.UTC) + _ASK_AGAIN,
        }


def profile_keys(profile: AwsProfile) -> ProfileKeys:
    """Get the keys of a profile. Raises MissingExtraError, and ObjectForbiddenError if it gives none."""
    try:
        import botocore.session
    except ImportError as error:
        raise MissingExtraError(
            package="boto3",
            extra="aws-profile",
            purpose=f"reading the keys of an AWS profile ({profile.config_file} or {profile.credentials_file})",
        ) from error
    try:
        session: Any = botocore.session.Session(profile=profile.name)
        session.set_config_variable("config_file", profile.config_file)
        session.set_config_variable("credentials_file", profile.credentials_file)
        credentials = session.get_credentials()
    except Exception as error:
        raise _no_keys(profile, first_line(error)) from error
    if credentials is None:
        raise _no_keys(profile, "it holds none, and this machine has no role")
    return ProfileKeys(credentials)


def _no_keys(profile: AwsProfile, why: str) -> ObjectForbiddenError:
    return ObjectForbiddenError(
        f"the AWS profile {profile.name or 'default'!r} gives no credentials: {why}; check AWS_PROFILE, "
        f"{profile.config_file} and {profile.credentials_file}"
    )


def _path(environment: Mapping[str, str], variable: str, name: str) -> str:
    home = environment.get("HOME") or os.path.expanduser("~")
    named = environment.get(variable)
    if not named:
        return os.path.join(home, ".aws", name)
    return os.path.join(home, named[2:]) if named.startswith("~/") else named


def _sections(path: str) -> dict[str, Section]:
    """Return the sections of a file by name, quotes and further spaces left out; none if there is no such file."""
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, configparser.Error) as error:
        line = getattr(error, "lineno", None) or next((line for line, _ in getattr(error, "errors", ())), None)
        where = f"line {line}" if line else type(error).__name__
        raise OptionError(f"{path} cannot be read as a file of AWS's settings ({where}); mend it") from None
    return {_section_name(name): {key: _value(text) for key, text in parser.items(name)} for name in parser.sections()}


def _section_name(name: str) -> str:
    """Return the name in its plain form.

    >>> _section_name('profile   "my work"')
    'profile my work'
    """
    try:
        return " ".join(shlex.split(name))
    except ValueError:
        return name


def _value(text: str) -> str | Mapping[str, str]:
    """Return a text, or settings that stand indented below it."""
    if not text.startswith("\n"):
        return text
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _text(section: object, key: str) -> str | None:
    value = section.get(key) if isinstance(section, Mapping) else None
    return value if isinstance(value, str) and value else None
