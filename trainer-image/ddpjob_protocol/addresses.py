"""Addresses as one text of host and port; an IPv6 address is in brackets."""

from __future__ import annotations


def join_address(host: str, port: int) -> str:
    """Return host:port, or [host]:port for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port; raise ValueError.

    An IPv6 address without brackets ends before the last colon.
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "[" in host or "]" in host or not _is_port(port):
        raise ValueError(f"{text!r} is not host:port, such as 10.0.0.1:29400 or [fd00::1]:29400")
    return host, int(port)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) < 65_536
