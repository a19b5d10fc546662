"""Simulated nodes in networks of their own, so that one can be cut off silently.

Each node is a network namespace. One more is the switch between them: a bridge, out of reach of the
machine's own packet filter. This process, and with it the rendezvous service, has a port there, too.
A cut takes a node's port off the bridge: packets both ways vanish, and no connection is closed.
Addresses are of 198.18.0.0/15, set aside for tests of networks; no route leaves them.
Needs root and iproute2, else raises NetworkError. May not: start processes on nodes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddpjob_operator.local.simulated.networks import NodeNetwork
from ddpjob_protocol.environment import ENV_ADDRESS

INTERFACE = "eth0"  # of every node
BRIDGE = "bridge"
PREFIX = "djt"  # of all names that others see, before the number of the process that made them
NAME = re.compile(rf"{PREFIX}(\d+)n\d+(-switch|-node-\d+)?")
NUMBERS = itertools.count()  # of the parks that this process makes
INTERFACES, NAMESPACES = Path("/sys/class/net"), Path("/run/netns")


class NetworkError(Exception):
    """Networks for nodes cannot be made here; the message has the remedy."""


class Networks(NodeNetwork):
    """The networks of one park of nodes."""

    def __init__(self) -> None:
        need_networks()
        sweep()
        self._mark = f"{PREFIX}{os.getpid()}n{next(NUMBERS)}"
        self._switch = f"{self._mark}-switch"
        self._subnet = free_subnet()
        self._nodes: list[str] = []
        self.host = f"{self._subnet}.1"
        try:
            ip("netns", "add", self._switch)
            ip("-n", self._switch, "link", "add", BRIDGE, "type", "bridge")
            ip("-n", self._switch, "link", "set", BRIDGE, "up")
            self._connect("host", self._mark, netns="")
            ip("address", "add", f"{self.host}/24", "dev", self._mark)
            ip("link", "set", self._mark, "up")
        except NetworkError:
            self.close()
            raise

    def namespace(self, node: str) -> str:
        """File of a node's network namespace."""
        if node not in self._nodes:
            self._nodes.append(node)
            self._make(node)
        return str(NAMESPACES / self._name(node))

    def environment(self, node: str) -> Mapping[str, str]:
        """Return the variables of the network for the agent and its processes."""
        return {ENV_ADDRESS: self._address(node), "GLOO_SOCKET_IFNAME": INTERFACE}

    def cut(self, node: str) -> None:
        """Drop every packet to and from a node."""
        ip("-n", self._switch, "link", "set", node, "nomaster")

    def mend(self, node: str) -> None:
        """Let packets pass again."""
        ip("-n", self._switch, "link", "set", node, "master", BRIDGE)

    def part(self, *nodes: str) -> None:
        """Drop every packet from one of these nodes to another; all else passes."""
        for node in nodes:
            ip("-n", self._switch, "link", "set", node, "type", "bridge_slave", "isolated", "on")

    def close(self) -> None:
        """Remove everything, also what is half made."""
        for path in self.left():
            remove(path)

    def left(self) -> list[Path]:
        """Return what there is of it."""
        return [path for path in ours() if path.name.partition("-")[0] == self._mark]

    def _make(self, node: str) -> None:
        name = self._name(node)
        ip("netns", "add", name)
        self._connect(node, INTERFACE, netns=name)
        ip("-n", name, "address", "add", f"{self._address(node)}/24", "dev", INTERFACE)
        ip("-n", name, "link", "set", INTERFACE, "up")
        ip("-n", name, "link", "set", "lo", "up")

    def _connect(self, port: str, interface: str, netns: str) -> None:
        """A cable between a port of the bridge and an interface elsewhere; "" is here."""
        here = ("netns", netns or str(os.getpid()))
        cable = ("type", "veth", "peer", "name", interface)
        ip("-n", self._switch, "link", "add", port, *cable, *here)
        ip("-n", self._switch, "link", "set", port, "master", BRIDGE, "up")

    def _name(self, node: str) -> str:
        return f"{self._mark}-{node}"

    def _address(self, node: str) -> str:
        return f"{self._subnet}.{self._nodes.index(node) + 2}"


@contextlib.contextmanager
def networks() -> Iterator[Networks]:
    """Networks that are gone at the end of the block, however it ends."""
    made = Networks()
    try:
        yield made
    finally:
        made.close()
        assert not made.left(), f"left behind: {made.left()}"


def ours() -> list[Path]:
    """Namespaces and interfaces that a test made, this one or another one."""
    found = [*NAMESPACES.glob(f"{PREFIX}*"), *INTERFACES.glob(f"{PREFIX}*")]
    return [path for path in found if NAME.fullmatch(path.name)]


def owner_of(path: Path) -> int:
    """The process that made it."""
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def remove(path: Path) -> None:
    """A namespace, or an interface; it may have vanished with the other end of its cable."""
    kind = "netns" if path.parent == NAMESPACES else "link"
    with contextlib.suppress(NetworkError):
        ip(kind, "delete", path.name)


def sweep() -> None:
    """Remove the networks of a run that was killed before it removed them."""
    for path in ours():
        if not Path(f"/proc/{owner_of(path)}").exists():
            remove(path)


def need_networks() -> None:
    """Raise unless network namespaces can be made; as root, install what is missing."""
    if os.geteuid() != 0:
        raise NetworkError(
            "nodes are cut off from each other in network namespaces, and only root can make"
            " these: run this test as root"
        )
    if shutil.which("ip") is None and shutil.which("apt-get") is not None:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", "iproute2"]):
            subprocess.run(["apt-get", *command], check=False, env=environment)
    if shutil.which("ip") is None:
        raise NetworkError("the program `ip` is missing: install the package iproute2")


def free_subnet() -> str:
    """The first three numbers of a network that no interface of this machine is in."""
    taken = ip("-o", "-4", "address", "show")
    for _ in range(1000):
        subnet = f"198.{18 + secrets.randbelow(2)}.{secrets.randbelow(256)}"
        if f" {subnet}." not in taken:
            return subnet
    raise NetworkError("every network of 198.18.0.0/15 is in use here; see `ip address`")


def ip(*arguments: str) -> str:
    """Run `ip`; returns what it prints."""
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise NetworkError(
            f"ip {' '.join(arguments)}: {done.stderr.strip()}\nTo give nodes networks of their own"
            " this machine must allow network namespaces, veth pairs and bridges (CAP_SYS_ADMIN"
            " and CAP_NET_ADMIN)"
        )
    return done.stdout
