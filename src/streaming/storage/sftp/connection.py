"""Connections to an SFTP server: where it is, as whom to log in, and why that failed."""

from __future__ import annotations

import getpass
import os
import urllib.parse
from dataclasses import dataclass, field
from typing import Final

from paramiko import (
    AuthenticationException,
    BadHostKeyException,
    PasswordRequiredException,
    SSHClient,
    SSHException,
)

from streaming.errors import (
    ObjectForbiddenError,
    OptionError,
    StorageError,
    StoreUnreachableError,
)
from streaming.storage.common.transport import connect_timeout_s
from streaming.storage.options import options_for
from streaming.storage.settings import StoreSettings
from streaming.storage.sftp.session import SftpSession
from streaming.storage.url import Bucket

_WINDOW_BYTES: Final = 1 << 23  # the server may send this much before it waits for the client's consent
_KEEPALIVE_S: Final = 30


@dataclass(frozen=True, slots=True)
class SftpLogin:
    """A server, and the user to log in as."""

    host: str
    port: int
    user: str
    password: str | None = field(repr=False)
    key_file: str | None
    passphrase: str | None = field(repr=False)
    known_hosts_file: str | None  # None: the system's and the user's
    home: str
    connect_s: float

    def __str__(self) -> str:
        return f"sftp://{self.host}:{self.port}"


def sftp_login(location: Bucket, settings: StoreSettings) -> SftpLogin:
    """Read the login from options, then URL, then environment. Raises OptionError."""
    options, environment = options_for(location, settings.options), settings.environment
    person, _, machine = location.name.rpartition("@")
    user, _, password = (urllib.parse.unquote(part) for part in person.partition(":"))
    host, port = _host_and_port(machine)
    return SftpLogin(
        host,
        port,
        options.get("user") or user or getpass.getuser(),
        options.get("password") or password or None,
        options.get("key_file") or environment.get("COMPOSER_SFTP_KEY_FILE") or None,
        options.get("key_passphrase"),
        options.get("known_hosts") or environment.get("COMPOSER_SFTP_KNOWN_HOSTS_FILE") or None,
        environment.get("HOME") or os.path.expanduser("~"),
        options.get("connect_timeout") or connect_timeout_s(settings.timeout_s),
    )


def _host_and_port(machine: str) -> tuple[str, int]:
    host, colon, port = machine.rpartition(":") if not machine.endswith("]") else (machine, "", "")
    if not colon:
        host, port = machine, "22"
    if not 1 <= int(port or 0) <= 65535:
        raise OptionError(f"the port of the sftp URL must be a number from 1 to 65535, got {port!r}")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class SftpConnection:
    """A session, and the client whose connection carries it."""

    client: SSHClient
    session: SftpSession

    def is_alive(self) -> bool:
        """Whether neither end has closed the connection, as far as this end knows."""
        transport = self.client.get_transport()
        return transport is not None and transport.is_active()


def connect(login: SftpLogin, timeout_s: float) -> SftpConnection:
    """Connect to a known host and start a session. Raises OptionError and the kinds of StorageError."""
    client = SSHClient()
    try:
        _trust_known_hosts(client, login)
        client.connect(
            login.host,
            login.port,
            login.user,
            login.password,
            key_filename=login.key_file,
            passphrase=login.passphrase,
            timeout=login.connect_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
            channel_timeout=timeout_s,
        )
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(_KEEPALIVE_S)
        channel = transport.open_session(window_size=_WINDOW_BYTES, timeout=timeout_s)
        channel.settimeout(timeout_s)
        channel.invoke_subsystem("sftp")
        return SftpConnection(client, SftpSession(channel))
    except BaseException as error:
        client.close()
        raise _why_not_connected(login, error) from error


def _trust_known_hosts(client: SSHClient, login: SftpLogin) -> None:
    """Trust the hosts of the file that was named, else of the system and the user; paramiko rejects all others."""
    if login.known_hosts_file is not None:
        try:
            client.load_host_keys(login.known_hosts_file)
        except OSError as error:
            raise OptionError(
                "the known hosts that COMPOSER_SFTP_KNOWN_HOSTS_FILE or `known_hosts` in storage_options names cannot "
                f"be read: {error}"
            ) from error
        return
    for path in ("/etc/ssh/ssh_known_hosts", os.path.join(login.home, ".ssh", "known_hosts")):
        if os.path.isfile(path):
            client.load_system_host_keys(path)


def _why_not_connected(login: SftpLogin, error: BaseException) -> BaseException:
    if isinstance(error, OptionError) or not isinstance(error, Exception):
        return error
    if isinstance(error, BadHostKeyException):
        return StorageError(f"{login} shows another key than the known one: is it another machine? ({error})")
    if isinstance(error, AuthenticationException | PasswordRequiredException):
        means = f"the key {login.key_file}" if login.key_file else "a password" if login.password else "the user's keys"
        return ObjectForbiddenError(
            f"{login} does not let the user {login.user!r} in with {means}: {error}; check user, key and password"
        )
    if isinstance(error, SSHException) and "not found in known_hosts" in str(error):
        return StorageError(
            f"{login} is not among the known hosts; add its key (ssh-keyscan -p {login.port} {login.host}, once "
            "compared) to ~/.ssh/known_hosts or to the file that COMPOSER_SFTP_KNOWN_HOSTS_FILE names"
        )
    if isinstance(error, FileNotFoundError | PermissionError):  # the key file
        return OptionError(f"the key for {login} cannot be read: {error}; check COMPOSER_SFTP_KEY_FILE or `key_file`")
    return StoreUnreachableError(f"{login}: no connection: {error}; check host, port and network")
