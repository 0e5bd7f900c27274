"""The Helm chart: what it renders is valid, and it refuses values that cannot work.

`make test-deploy` runs this with a real helm. What is executed in containers is in `test_image.py`.
"""

import base64
import json
import os
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from plainsql_server import VERSION
from plainsql_server.settings import describe_settings

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy/helm/plainsql"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
HELM = os.environ.get("PLAINSQL_TEST_HELM", "helm")
KUBECTL = Path(HELM).parents[1] / "kubectl/kubectl" if os.path.isabs(HELM) else "kubectl"
VALIDATE = ROOT / ".venv-deploy/bin/kubernetes-validate"
KUBERNETES = ("1.35", "1.36", "1.37")
# Of others' resource definitions, for which there is no schema here.
_CUSTOM = ("gateway.networking.k8s.io/", "monitoring.coreos.com/")


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60, check=False)


def rendered(*values: Path) -> list[dict[str, Any]]:
    ended = helm("template", "demo", CHART, *(f"--values={each}" for each in values))
    assert ended.returncode == 0, ended.stderr
    return [each for each in yaml.safe_load_all(ended.stdout) if each]


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The specifications of all pods."""
    templates = [each["spec"]["template"]["spec"] for each in objects if each["kind"] in ("Deployment", "Job")]
    return templates + [each["spec"] for each in objects if each["kind"] == "Pod"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["containers"], *pod.get("initContainers", [])]


def test_the_chart_is_of_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == VERSION


def test_the_chart_has_the_alerts_of_the_prometheus_sample() -> None:
    ours = (CHART / "files/plainsql-alerts.yml").read_text()
    assert ours == (ROOT / "deploy/prometheus/plainsql-alerts.yml").read_text()


def merged(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The values with others over them, as helm merges them."""
    both = {**values, **others}
    for name, value in values.items():
        if isinstance(value, dict) and name in others:
            both[name] = merged(value, others[name])
    return both


def refused(*files: dict[str, Any]) -> set[str]:
    """The values that the schema refuses, over the defaults of the chart."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for file in files:
        values = merged(values, file)
    schema = jsonschema_rs.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    return {"/".join(map(str, error.instance_path)) for error in schema.iter_errors(values)}


@pytest.mark.unit
def test_the_schema_knows_all_defaults_and_requires_what_has_none() -> None:
    assert refused() == {"directory/existingSecret", "cells/existingSecret", "data/url", "control/url"}


@pytest.mark.unit
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_schema_accepts_the_sample(values: Path) -> None:
    assert refused(yaml.safe_load(values.read_text())) == set()


@pytest.mark.full
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_finds_nothing_to_complain_about(values: Path) -> None:
    ended = helm("lint", "--strict", CHART, "--values", values)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.full
@pytest.mark.parametrize("release", KUBERNETES)
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_what_is_rendered_fits_the_schemas_of_kubernetes(values: Path, release: str, tmp_path: Path) -> None:
    objects = [each for each in rendered(values) if not each["apiVersion"].startswith(_CUSTOM)]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    ended = subprocess.run(
        [VALIDATE, "--strict", "--kubernetes-version", release, file],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(objects) >= 8


@pytest.mark.full
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_pods_have_no_more_rights_than_they_need(values: Path) -> None:
    for pod in pods(rendered(values)):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in containers(pod):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.full
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_setting_exists(values: Path) -> None:
    known = {variable for variable, _, _ in describe_settings()}
    for pod in pods(rendered(values)):
        for container in containers(pod):
            assert {each["name"] for each in container.get("env", [])} <= known


@pytest.mark.full
def test_a_plane_has_only_its_own_certificate() -> None:
    for pod in pods(rendered(CHART / "ci/minimal-values.yaml")):
        cells = [volume["secret"] for volume in pod.get("volumes", []) if volume["name"] == "cells"]
        for secret in cells:
            plane = pod["containers"][0]["name"]
            assert [item["key"] for item in secret["items"]] == ["ca.crt", f"{plane}.crt", f"{plane}.key"]


@pytest.mark.full
def test_the_operators_pod_has_its_own_login_and_serves_nothing() -> None:
    (pod,) = [each for each in pods(rendered(CHART / "ci/ingress-values.yaml")) if named(each) == "operator"]
    (container,) = pod["containers"]
    dsn = next(each for each in container["env"] if each["name"] == "PLAINSQL_DIRECTORY_DSN")
    assert dsn["valueFrom"]["secretKeyRef"]["key"] == "operator-dsn"
    assert "ports" not in container
    assert not [each for each in container["env"] if "METRICS" in each["name"]]


@pytest.mark.full
def test_all_who_log_in_to_the_directory_can_verify_it(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"directory": {"caKey": "directory-ca"}}))
    for sample in VALUES:
        objects = rendered(sample, file)
        for pod in pods(objects):
            for container in containers(pod):
                if any(each["name"] == "PLAINSQL_DIRECTORY_DSN" for each in container.get("env", [])):
                    assert mounted(pod, container)["/etc/plainsql/directory"] == ["directory-ca"], container["name"]
    assert not [
        each for pod in pods(rendered(sample)) for each in pod.get("volumes", []) if each["name"] == "directory"
    ]


@pytest.mark.full
def test_the_readmes_commands_make_the_secrets_that_its_values_name(tmp_path: Path) -> None:
    dsn = "host=directory.example user=plainsql_data sslmode=verify-full sslrootcert=/etc/plainsql/directory/ca.crt"
    text = (CHART / "README.md").read_text().partition("## Install it")[2].partition("\n## ")[0]
    for name in re.findall(r"--from-file=(?:[a-z.]+=)?([a-z.-]+)", text):
        (tmp_path / name).write_text(f"{dsn}\n")
    (tmp_path / "redis.env").write_text("url=rediss://:x@redis.example:6379/0\n")
    (tmp_path / "values.yaml").write_text(textwrap.dedent(text.partition("```yaml\n")[2].partition("   ```")[0]))
    made = [kubectl(command, tmp_path) for command in re.findall(r"kubectl (create secret (?:.*\\\n)*.*)", text)]
    keys = {each["metadata"]["name"]: set(each["data"]) for each in made}
    for pod in pods(rendered(tmp_path / "values.yaml")):
        for name, key in asked_for(pod):
            assert key in keys[name], (name, key)
    # A file ends with a line feed, which libpq takes for a space.
    stored = base64.b64decode(made[0]["data"]["data-dsn"]).decode()
    assert conninfo_to_dict(stored) == conninfo_to_dict(dsn)


def kubectl(command: str, folder: Path) -> dict[str, Any]:
    """What a command would send to the cluster."""
    arguments = [*shlex.split(command.replace("\\\n", " ")), "--dry-run=client", "--output=json"]
    ended = subprocess.run([KUBECTL, *arguments], capture_output=True, text=True, cwd=folder, check=False)
    assert ended.returncode == 0, ended.stderr
    sent: dict[str, Any] = json.loads(ended.stdout)
    return sent


def asked_for(pod: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The secrets of a pod, with their keys."""
    for container in containers(pod):
        for variable in container.get("env", []):
            if "valueFrom" in variable:
                yield variable["valueFrom"]["secretKeyRef"]["name"], variable["valueFrom"]["secretKeyRef"]["key"]
    for volume in pod.get("volumes", []):
        for item in volume.get("secret", {}).get("items", []):
            yield volume["secret"]["secretName"], item["key"]


def mounted(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, list[str]]:
    """The keys of secrets that a container has as files, by folder."""
    keys = {
        volume["name"]: [item["key"] for item in volume["secret"].get("items", [])]
        for volume in pod.get("volumes", [])
        if "secret" in volume
    }
    return {each["mountPath"]: keys[each["name"]] for each in container.get("volumeMounts", []) if each["name"] in keys}


@pytest.mark.full
def test_the_operators_pod_can_back_up_and_has_no_key_of_the_planes(tmp_path: Path) -> None:
    for values, image in (
        ({}, f"plainsql-server:{VERSION}-ops"),
        ({"image": {"tag": "1", "digest": "sha256:" + "0" * 64}}, "plainsql-server:1-ops"),
        ({"operator": {"image": {"repository": "mine", "tag": "18"}}}, "mine:18"),
        ({"operator": {"image": {"digest": "sha256:" + "1" * 64}}}, "plainsql-server@sha256:" + "1" * 64),
    ):
        file = tmp_path / "values.yaml"
        file.write_text(json.dumps(values))
        objects = rendered(CHART / "ci/ingress-values.yaml", file)
        (pod,) = [each for each in pods(objects) if named(each) == "operator"]
        (container,) = pod["containers"]
        assert container["image"] == image
        assert "tls" not in {each["name"] for each in (*pod["volumes"], *container["volumeMounts"])}
        assert not [each for each in container["env"] if "TLS" in each["name"]]


@pytest.mark.full
def test_backups_have_a_place_in_the_operators_pod(tmp_path: Path) -> None:
    volume = {"name": "backups", "persistentVolumeClaim": {"claimName": "backups"}}
    mount = {"name": "backups", "mountPath": "/backups"}
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps({"operator": {"volumes": [volume], "volumeMounts": [mount]}}))
    objects = rendered(CHART / "ci/ingress-values.yaml", file)
    (pod,) = [each for each in pods(objects) if named(each) == "operator"]
    assert volume in pod["volumes"]
    assert mount in pod["containers"][0]["volumeMounts"]


def named(pod: dict[str, Any]) -> str:
    name: str = pod["containers"][0]["name"]
    return name


@pytest.mark.full
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_every_pod_can_pull_its_image_and_has_limits(values: Path, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    secrets = [{"name": "registry"}]
    file.write_text(json.dumps({"image": {"pullSecrets": secrets, "pullPolicy": "Always"}}))
    found = pods(rendered(values, file))
    assert {"data", "control"} <= {named(pod) for pod in found}
    for pod in found:
        assert pod["imagePullSecrets"] == secrets, named(pod)
        assert pod["enableServiceLinks"] is False, named(pod)
        for container in containers(pod):
            assert container["imagePullPolicy"] == "Always", container["name"]
            assert container["resources"]["limits"]["memory"], container["name"]


@pytest.mark.full
def test_what_the_chart_sets_is_refused_as_a_setting(tmp_path: Path) -> None:
    sample, file = CHART / "ci/ingress-values.yaml", tmp_path / "values.yaml"
    names = {each["name"] for pod in pods(rendered(sample)) for container in containers(pod) for each in env(container)}
    assert len(names) > 10
    # With both, a container would have the variable twice.
    for name in names:
        file.write_text(json.dumps({"settings": {name: "1"}}))
        ended = helm("template", "demo", CHART, "--values", sample, "--values", file)
        assert ended.returncode != 0, name
        assert name in ended.stderr, ended.stderr


def env(container: dict[str, Any]) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = container.get("env", [])
    return variables


@pytest.mark.full
def test_services_have_the_port_of_what_the_pods_speak(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    for values, port in (
        ({}, 80), ({"tls": {"existingSecret": "served"}}, 443), ({"data": {"service": {"port": 8443}}}, 8443),
    ):  # fmt: skip
        file.write_text(json.dumps(values))
        objects = rendered(CHART / "ci/gateway-values.yaml", file)
        (service,) = [each for each in objects if is_named(each, "Service", "demo-plainsql-data")]
        (route,) = [each for each in objects if is_named(each, "HTTPRoute", "demo-plainsql-data")]
        (test,) = [each for each in objects if is_named(each, "Pod", "demo-plainsql-test")]
        assert service["spec"]["ports"][0]["port"] == port
        assert route["spec"]["rules"][0]["backendRefs"][0]["port"] == port
        assert test["spec"]["containers"][0]["args"][-1].endswith(f"://demo-plainsql-data:{port}")


def is_named(each: dict[str, Any], kind: str, name: str) -> bool:
    return (each["kind"], each["metadata"]["name"]) == (kind, name)


@pytest.mark.full
def test_a_volume_for_one_pod_does_not_block_an_upgrade_of_the_operators() -> None:
    objects = rendered(CHART / "ci/ingress-values.yaml")
    (operator,) = [each for each in objects if is_named(each, "Deployment", "demo-plainsql-operator")]
    assert operator["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.unit
def test_ingress_nginx_lets_through_what_the_alias_does() -> None:
    alias = (ROOT / "deploy/nginx/plainsql-alias.conf").read_text()
    values = yaml.safe_load((CHART / "ci/ingress-values.yaml").read_text())
    prefix = "nginx.ingress.kubernetes.io/"
    found = {name.removeprefix(prefix): value for name, value in values["ingress"]["annotations"].items()}
    # The pods of this sample serve TLS.
    assert values["tls"]["existingSecret"]
    assert found.pop("backend-protocol") == "HTTPS"
    assert f"client_max_body_size {int(found['proxy-body-size'][:-1]) * 1024**2};" in alias
    assert f"proxy_read_timeout {found['proxy-read-timeout']}s;" in alias
    assert f"proxy_buffering {found['proxy-buffering']};" in alias
    hashed = found["upstream-hash-by"]
    # An Ingress has no map that says which routes read it.
    of_alias = alias.replace("$plainsql_connection_string", "$http_neon_connection_string")
    assert re.findall(r"\$\w+", hashed) == re.findall(r"\$\w+", of_alias.partition("    hash ")[2].partition(";")[0])
    # ingress-nginx refuses all other characters.
    assert re.fullmatch(r"[A-Za-z0-9_${}-]*", hashed)
    readme = (CHART / "README.md").read_text()
    written = re.findall(rf"^ +{prefix}([a-z-]+): (.*)$", readme, re.MULTILINE)
    assert {name: str(yaml.safe_load(value)) for name, value in written} == found


def notes(folder: Path, **values: Any) -> str:
    file = folder / "values.yaml"
    file.write_text(json.dumps(values))
    sample = CHART / "ci/minimal-values.yaml"
    ended = helm("install", "demo", CHART, "--values", sample, "--values", file, "--dry-run=client")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.partition("NOTES:\n")[2]


@pytest.mark.full
def test_the_notes_say_how_to_reach_the_planes_and_what_is_not_protected(tmp_path: Path) -> None:
    shown = notes(tmp_path)
    assert "port-forward service/demo-plainsql-data 8400:80\n   curl http://localhost:8400/v1/query" in shown
    assert "with\ntls.existingSecret, data.service.type" in shown
    assert "Secrets in the directory are not sealed." in shown
    assert "Each process enforces its share" in shown
    shown = notes(tmp_path, tls={"existingSecret": "served"}, secretsKeys={"existingSecret": "keys"})
    assert "port-forward service/demo-plainsql-data 8400:443\n   curl --connect-to sql.example:8400:" in shown
    assert "https://sql.example:8400/v1/query" in shown
    assert "not sealed" not in shown
    public = {"service": {"type": "LoadBalancer"}}
    assert "The pods serve plain HTTP" in notes(tmp_path, data=public)
    assert "The pods serve plain HTTP" not in notes(tmp_path, data=public, tls={"existingSecret": "served"})


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no-directory": ({"directory": {"existingSecret": ""}}, "directory/existingSecret"),
    "no-cells": ({"cells": {"existingSecret": ""}}, "cells/existingSecret"),
    "no-url": ({"data": {"url": ""}}, "data/url"),
    "url-with-path": ({"control": {"url": "https://control.example/v1"}}, "control/url"),
    "same-url": ({"control": {"url": "https://sql.example"}}, "data.url and control.url"),
    "unknown-value": ({"data": {"replica": 3}}, "replica"),
    "unknown-mode": ({"migrations": {"mode": "hook"}}, "migrations/mode"),
    "replicas-as-text": ({"data": {"replicas": "two"}}, "data/replicas"),
    "two-entrances": (
        {"ingress": {"enabled": True}, "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}},
        "ingress.enabled or httpRoute.enabled",
    ),
    "no-gateway": ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs"),
    "minimum-above-maximum": (
        {"data": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 4}}},
        "data.autoscaling.minReplicas",
    ),
    "no-time-to-end": ({"data": {"terminationGracePeriodSeconds": 20}}, "data.terminationGracePeriodSeconds"),
    "secret-as-setting": ({"settings": {"PLAINSQL_DIRECTORY_DSN": "host=db"}}, "directory.existingSecret"),
    "keys-as-setting": ({"settings": {"PLAINSQL_SECRETS_KEYS": "x"}}, "secretsKeys.existingSecret"),
    "secret-of-the-operator": ({"operator": {"settings": {"PLAINSQL_REDIS_URL": "x"}}}, "redis.existingSecret"),
    "unknown-setting": ({"data": {"settings": {"WORKERS": "4"}}}, "WORKERS"),
    "setting-of-the-chart": ({"settings": {"PLAINSQL_WORKERS": 9}}, "data.workers"),
    "broken-digest": ({"image": {"digest": "sha256:12"}}, "image/digest"),
}


@pytest.mark.unit
def test_the_readme_says_how_many_broken_files_are_tried() -> None:
    assert f"tries {len(BROKEN)} values files" in (CHART / "README.md").read_text()


@pytest.mark.unit
@pytest.mark.parametrize("name", [name for name, (_, message) in BROKEN.items() if "/" in message])
def test_the_schema_refuses_it_by_name(name: str) -> None:
    values, message = BROKEN[name]
    assert refused(yaml.safe_load((CHART / "ci/minimal-values.yaml").read_text()), values) == {message}


@pytest.mark.full
@pytest.mark.parametrize("name", BROKEN)
def test_values_that_cannot_work_are_refused_by_name(name: str, tmp_path: Path) -> None:
    values, message = BROKEN[name]
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    ended = helm("template", "demo", CHART, "--values", CHART / "ci/minimal-values.yaml", "--values", file)
    assert ended.returncode != 0
    assert message in ended.stderr
