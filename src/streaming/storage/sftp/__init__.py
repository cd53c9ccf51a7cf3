"""SFTP servers, through paramiko, which every module of this package imports."""

from streaming.storage.common.extras import import_extra

import_extra("paramiko", package="paramiko", extra="sftp", purpose="sftp://")
