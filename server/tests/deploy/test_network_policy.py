"""The chart's network policies: nobody reaches the pods that serve nothing, and the others only at their ports.

`make test-deploy` runs this with a real helm.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from server.tests.deploy.test_chart import CHART, rendered

pytestmark = pytest.mark.full

_COMPONENT = "app.kubernetes.io/component"
_DNS: dict[str, Any] = {"ports": [{"port": 53, "protocol": "UDP"}]}
_EVERY_POD = CHART / "ci/ingress-values.yaml"


def policies(*values: Path) -> dict[str, dict[str, Any]]:
    """The rules of each component."""
    objects = [each for each in rendered(*values) if each["kind"] == "NetworkPolicy"]
    return {each["spec"]["podSelector"]["matchLabels"][_COMPONENT]: each["spec"] for each in objects}


def components(*values: Path) -> set[str]:
    """The components that have pods."""
    found = set()
    for each in rendered(*values):
        if each["kind"] in ("Deployment", "Job"):
            found.add(each["spec"]["template"]["metadata"]["labels"][_COMPONENT])
        elif each["kind"] == "Pod":
            found.add(each["metadata"]["labels"][_COMPONENT])
    return found


def test_every_pod_has_a_policy_and_those_that_serve_nothing_admit_nobody() -> None:
    rules = policies(_EVERY_POD)
    assert components(_EVERY_POD) == set(rules) == {"data", "control", "operator", "migrate", "test"}
    for component in ("operator", "migrate", "test"):
        assert "Ingress" in rules[component]["policyTypes"]
        assert "ingress" not in rules[component]
    for plane in ("data", "control"):
        assert [each["ports"][0]["port"] for each in rules[plane]["ingress"]] == ["http", 9400]


def test_the_chart_s_own_test_reaches_planes_that_admit_only_a_gateway() -> None:
    rules = policies(CHART / "ci/gateway-values.yaml")
    (gateway, test) = rules["data"]["ingress"][0]["from"]
    assert "namespaceSelector" in gateway
    assert test["podSelector"]["matchLabels"][_COMPONENT] == "test"


def test_the_policy_of_a_hook_exists_when_the_hook_runs() -> None:
    (policy,) = [
        each
        for each in rendered(_EVERY_POD)
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith("-migrate")
    ]
    annotations = policy["metadata"]["annotations"]
    assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
    # The job has no weight, which is 0.
    assert int(annotations["helm.sh/hook-weight"]) < 0


def test_what_pods_may_reach_is_limited_only_if_you_say_so(tmp_path: Path) -> None:
    for each in policies(_EVERY_POD).values():
        assert each["policyTypes"] == ["Ingress"]
        assert "egress" not in each
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"networkPolicy": {"egress": [_DNS]}}))
    limited = policies(_EVERY_POD, file)
    for component, each in limited.items():
        assert each["policyTypes"] == ["Ingress", "Egress"], component
        assert _DNS in each["egress"]
    # It asks the planes, which nobody has to list.
    assert len(limited["test"]["egress"]) == 2


def test_an_empty_list_of_readers_of_the_metrics_admits_everyone(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"networkPolicy": {"metricsFrom": []}}))
    assert "from" not in policies(_EVERY_POD, file)["data"]["ingress"][1]
    assert "Empty: every pod and address" in (CHART / "values.yaml").read_text().partition("may read the metrics")[2]
