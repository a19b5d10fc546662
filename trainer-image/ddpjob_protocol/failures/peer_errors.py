"""The errors that a process prints because another process ended."""

from __future__ import annotations

import re

SECONDARY = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|Connection refused|recvBytes|sendBytes"
    r"|ncclRemoteError|NCCL communicator was aborted|remote process exited|DistNetworkError"
    r"|DistStoreError|Socket Timeout"
)
