"""The Helm chart: what it renders, which values it takes, and what it lets the operator do."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from typing import Any

import pytest
import typer.testing
import yaml

from cluster.charting import (
    CHART,
    DIGEST,
    FULL,
    NAMED,
    NAMESPACE,
    RELEASE,
    RULES,
    TEAMS,
    VARIANTS,
    Helm,
    described,
    of_kind,
    options,
    pod_of,
    render,
)
from cluster.control_plane import ROOT
from ddpjob_operator.cli import main
from ddpjob_operator.controller.process import main as process
from ddpjob_operator.controller.settings import Settings
from ddpjob_operator.manifests.network_policy import OperatorPods

LEASES = "coordination.k8s.io/leases"
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS)


def settings_of(variant: str) -> list[str]:
    return VARIANTS[variant][0]


def test_the_chart_passes_its_linter(helm: Helm) -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_schema_and_values_know_the_same_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    del schema["properties"]["global"]  # Helm's own
    assert described(schema) == {
        *values,
        *(f"{a}.{b}" for a in values if isinstance(values[a], dict) for b in values[a]),
        *(f"metrics.{a}.{b}" for a in values["metrics"] for b in values["metrics"][a]),
    }


@EACH_VARIANT
def test_it_renders(helm: Helm, variant: str) -> None:
    objects = render(helm, settings_of(variant))
    expected = Counter(VARIANTS[variant][1])
    assert Counter(each["kind"] for each in objects) == +expected


WRONG = [
    ("image.tags=1", "at '/image': additional properties 'tags' not allowed"),
    ("crds.keep=maybe", "at '/crds/keep': got string, want boolean"),
    ("image.digest=abc", "at '/image/digest': 'abc' does not match pattern"),
    ("logLevel=LOUD", "at '/logLevel': value must be one of 'DEBUG', 'INFO'"),
    ("serviceAccount.create=false", "at '/serviceAccount/name': minLength: got 0, want 1"),
    ("extraEnv[0].nam=A", "at '/extraEnv/0': missing property 'name'"),
    ("networkPolicy.job=true", "at '/networkPolicy': additional properties 'job' not allowed"),
    ("web.hosts={a/b}", "at '/web/hosts/0': 'a/b' does not match pattern"),
    ("watchNamespaces={Team_A}", "at '/watchNamespaces/0': 'Team_A' does not match pattern"),
]
WRONG_TOO = [
    ("watchNamespace={a}", "additional properties 'watchNamespace' not allowed"),
    ("watchNamespaces=a", "at '/watchNamespaces': got string, want array"),
]


@pytest.mark.parametrize("rows", [WRONG, WRONG_TOO], ids=["values", "namespaces"])
def test_every_wrong_value_is_refused_by_name(helm: Helm, rows: list[tuple[str, str]]) -> None:
    wrong = options(setting for setting, _ in rows)
    said = helm.refuses("template", RELEASE, str(CHART), *wrong)
    assert not [told for _, told in rows if told not in said], said


@pytest.mark.parametrize(
    ("settings", "operator", "agent"),
    [
        ([], "ddpjob/operator:0.1.0", "ddpjob/agent:0.1.0"),
        (["image.tag=x", "agentImage.tag=y"], "ddpjob/operator:x", "ddpjob/agent:y"),
        (FULL, f"ddpjob/operator@{DIGEST}", "registry.example.com:5000/team/agent:1.2"),
    ],
    ids=["default", "tag", "digest"],
)
def test_images(helm: Helm, settings: list[str], operator: str, agent: str) -> None:
    [container] = pod_of(render(helm, settings))["containers"]
    assert container["image"] == operator
    assert f"--agent-image={agent}" in container["args"]


def test_a_rotation_brings_the_earlier_keys_and_keeps_the_charts_own(helm: Helm) -> None:
    [secret] = of_kind(render(helm, []), "Secret")
    own = secret["metadata"]["name"]
    assert of_kind(render(helm, ["operatorKey.existingSecret=new"]), "Secret") == []
    earlier = f"operatorKey.previousSecrets={{{own},older}}"
    objects = render(helm, ["operatorKey.existingSecret=new", earlier])
    [kept] = of_kind(objects, "Secret")
    assert kept["metadata"]["name"] == own
    pod = pod_of(objects)
    [container] = pod["containers"]
    folders = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["key"]["secret"]["secretName"] == "new"
    files = {}
    for source in volumes["previous-keys"]["projected"]["sources"]:
        [item] = source["secret"]["items"]
        assert item["key"] == "key"
        files[f"{folders['previous-keys']}/{item['path']}"] = source["secret"]["name"]
    given = [each for each in container["args"] if each.startswith("--previous-key-file=")]
    assert [files[each.partition("=")[2]] for each in given] == [own, "older"]


@pytest.mark.parametrize(
    ("settings", "namespaces"), [([], ()), ([NAMED], TEAMS)], ids=["all", "named"]
)
def test_the_command_understands_its_arguments(
    helm: Helm,
    settings: list[str],
    namespaces: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Settings] = []

    async def run_operator(given: Settings) -> None:
        seen.append(given)

    monkeypatch.setattr(process, "run_operator", run_operator)
    [container] = pod_of(render(helm, settings))["containers"]
    done = typer.testing.CliRunner().invoke(main.app, container["args"])
    assert done.exit_code == 0, done.output
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    expected = Settings(
        agent_image="ddpjob/agent:0.1.0",
        namespaces=namespaces,
        lease=f"{NAMESPACE}/{'ours' if settings == FULL else RELEASE}",
        key_file="/etc/ddpjob/key",
        health_port=ports["health"],
        metrics_port=ports["metrics"],
        operator_pods=OperatorPods(
            NAMESPACE,
            {
                "app.kubernetes.io/instance": RELEASE,
                "app.kubernetes.io/name": "ddpjob-operator",
            },
        ),
    )
    assert seen == [expected]


def test_metrics_are_found_where_they_are_served(helm: Helm) -> None:
    settings = ["metrics.service.enabled=true", "metrics.podMonitor.enabled=true"]
    objects = render(helm, [*settings, "metrics.podMonitor.labels.prometheus=main"])
    template = of_kind(objects, "Deployment")[0]["spec"]["template"]
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    [service], [monitor] = of_kind(objects, "Service"), of_kind(objects, "PodMonitor")
    for selector, port in (
        (service["spec"]["selector"], service["spec"]["ports"][0]["targetPort"]),
        (
            monitor["spec"]["selector"]["matchLabels"],
            monitor["spec"]["podMetricsEndpoints"][0]["port"],
        ),
    ):
        assert selector.items() <= template["metadata"]["labels"].items()
        assert port in ports
    assert monitor["metadata"]["labels"]["prometheus"] == "main"


WEB = ["web.enabled=true", "web.hosts={jobs.example.com,other.example.com}"]


def test_the_page_is_off_as_the_chart_comes(helm: Helm) -> None:
    objects = render(helm, [])
    [container] = pod_of(objects)["containers"]
    assert not [word for word in container["args"] if "web" in word]
    assert [port["name"] for port in container["ports"]] == ["health", "metrics"]
    [policy] = of_kind(objects, "NetworkPolicy")
    assert [port["port"] for each in policy["spec"]["ingress"] for port in each["ports"]] == [
        8080, 9090,
    ]  # fmt: skip


@pytest.mark.parametrize("admitted", [[], [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]])
def test_the_page_has_a_port_a_service_and_named_visitors(
    helm: Helm, admitted: list[dict[str, Any]]
) -> None:
    peers = ["web.from[0].namespaceSelector.matchLabels.a=b"] if admitted else []
    objects = render(helm, [*WEB, *peers])
    [service], [deployment] = of_kind(objects, "Service"), of_kind(objects, "Deployment")
    template = deployment["spec"]["template"]
    [container] = template["spec"]["containers"]
    [port] = [each for each in container["ports"] if each["name"] == "web"]
    assert f"--web-port={port['containerPort']}" in container["args"]
    hosts = [word for word in container["args"] if word.startswith("--web-host=")]
    assert hosts == ["--web-host=jobs.example.com", "--web-host=other.example.com"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] == "web"
    [policy] = of_kind(objects, "NetworkPolicy")
    to_page = [
        each.get("from")
        for each in policy["spec"]["ingress"]
        if port["containerPort"] in [one["port"] for one in each["ports"]]
    ]
    assert to_page == ([admitted] if admitted else [])


# What it may do


def rules_of(role: dict[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        assert rule.keys() - {"resourceNames"} == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault(f"{group}/{resource}", set()).update(rule["verbs"])
    return found


@pytest.mark.parametrize(
    ("settings", "kind", "where"),
    [([], "ClusterRole", [None]), ([NAMED], "Role", list(TEAMS))],
    ids=["cluster", "namespaces"],
)
def test_the_operator_may_do_this_and_no_more(
    helm: Helm, settings: list[str], kind: str, where: list[str | None]
) -> None:
    objects = render(helm, settings)
    account = {"kind": "ServiceAccount", "name": RELEASE, "namespace": NAMESPACE}
    bindings = [
        binding
        for binding in objects
        if binding["kind"].endswith("Binding") and account in binding.get("subjects", ())
    ]
    [lease] = [each for each in bindings if each["metadata"]["name"].endswith("-lease")]
    bindings.remove(lease)
    [nodes] = [each for each in bindings if each["metadata"]["name"].endswith("-nodes")]
    bindings.remove(nodes)
    assert [binding["metadata"].get("namespace") for binding in bindings] == where
    for binding in bindings:
        assert (binding["kind"], binding["roleRef"]["kind"]) == (f"{kind}Binding", kind)
    names = {binding["roleRef"]["name"] for binding in bindings}
    roles = [role for role in of_kind(objects, kind) if role["metadata"]["name"] in names]
    assert [role["metadata"].get("namespace") for role in roles] == where
    assert [rules_of(role) for role in roles] == [RULES] * len(where)
    [own] = [role for role in of_kind(objects, "Role") if role["metadata"] == lease["metadata"]]
    assert own["metadata"]["namespace"] == NAMESPACE
    assert lease["roleRef"]["name"] == own["metadata"]["name"]
    assert rules_of(own) == {LEASES: {"create", "get", "update"}}
    [of_nodes] = [
        each for each in of_kind(objects, "Role") if each["metadata"] == nodes["metadata"]
    ]
    assert nodes["roleRef"]["name"] == of_nodes["metadata"]["name"]
    assert of_nodes["metadata"]["namespace"] == "kube-node-lease"
    assert rules_of(of_nodes) == {LEASES: {"get"}}
    [named] = [rule["resourceNames"] for rule in own["rules"] if rule["verbs"] != ["create"]]
    [container] = pod_of(objects)["containers"]
    assert f"--lease={NAMESPACE}/{named[0]}" in container["args"]


@pytest.mark.parametrize("role", ["ddpjob-viewer", "ddpjob-editor"])
def test_users_may_read_what_the_commands_show(helm: Helm, role: str) -> None:
    found = {each["metadata"]["name"]: each for each in of_kind(render(helm, []), "ClusterRole")}
    rules = rules_of(found[role])
    for resource in ("/pods", "/pods/log", "/events"):
        assert rules[resource] == {"get", "list", "watch"}
    assert {"get", "list", "watch"} <= rules["ddpjob.io/ddpjobs"]


@EACH_VARIANT
def test_no_role_reaches_further_than_jobs(helm: Helm, variant: str) -> None:
    objects = render(helm, settings_of(variant))
    for role in [*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role")]:
        rules = rules_of(role)
        assert rules.keys() <= {*RULES, "ddpjob.io/ddpjobs/scale", "/pods/log", LEASES}
        assert "*" not in set().union(*rules.values())
