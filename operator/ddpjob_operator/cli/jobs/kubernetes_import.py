"""Imports `kubernetes` without `requests` and the OAuth packages, which take a fifth of a command's time.

`kubernetes` imports them for proxies of streams, and for the auth provider `oidc` of old kubeconfigs.
They are imported when it uses them.
May not: be imported before a command needs the cluster.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

# Packages, and the functions and classes that `kubernetes` takes from them at its import.
LATER: Mapping[str, tuple[str, ...]] = {
    "oauthlib": (),
    "oauthlib.oauth2": (),
    "requests": (),
    "requests.utils": ("should_bypass_proxies",),
    "requests_oauthlib": ("OAuth2Session",),
}


class _Later(ModuleType):
    """Takes the place of a package until one of its names is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        package = self.__name__
        if name not in LATER[package]:
            return importlib.import_module(f"{package}.{name}")

        def call(*args: Any, **options: Any) -> Any:
            return getattr(importlib.import_module(package), name)(*args, **options)

        return call


@contextlib.contextmanager
def _later() -> Iterator[None]:
    if any(name in sys.modules for name in LATER):
        yield
        return
    sys.modules.update({name: _Later(name) for name in LATER})
    try:
        yield
    finally:
        for name in LATER:
            if isinstance(sys.modules[name], _Later):
                del sys.modules[name]


with _later():
    from kubernetes import client, config

__all__ = ["client", "config"]
