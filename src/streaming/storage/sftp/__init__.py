"""SFTP servers, through paramiko, which every module of this package imports."""

from streaming.storage.common.extras import needed

needed("paramiko", package="paramiko", extra="sftp", purpose="sftp://")
