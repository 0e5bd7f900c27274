"""Plays the chart's deployments with podman, on a network of their own, as a kubelet would.

    with network() as gateway, playing(deployments, secrets, folder) as played:
        played.run("demo-plainsql-operator", "plainsql-server", "--version")

podman 4.3 gives the files of a secret neither the names nor the permissions that the pod asks for, so they are written
here and mounted as a folder. It would run the probes with curl, which the image does not have, so the tests ask what
the probes ask.
"""

import base64
import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.tests.deploy.containers import BASE, podman

Json = dict[str, Any]
# The values by key, by the name of the secret.
Secrets = Mapping[str, Mapping[str, str]]

_NETWORK = "plainsql-test-kube"
# Holds a pod's namespaces.
_PAUSE = "localhost/plainsql-test/pause:12"
# podman would run the probes with curl, and open the ports on this machine.
_LEFT_OUT = ("startupProbe", "livenessProbe", "readinessProbe", "ports")


@dataclass(frozen=True, slots=True)
class Played:
    """Deployments that run, with one pod each, which has one container."""

    deployments: Mapping[str, Json]

    def container(self, name: str) -> str:
        return f"{name}-{self._specified(name)['name']}"

    def address(self, name: str) -> str:
        (pod,) = [json.loads(podman("pod", "inspect", name).stdout)]
        (infra,) = json.loads(podman("inspect", pod["InfraContainerID"]).stdout)
        address: str = infra["NetworkSettings"]["Networks"][_NETWORK]["IPAddress"]
        return address

    def probed(self, name: str, probe: str) -> str:
        """The URL that a probe asks."""
        container = self._specified(name)
        asked = container[probe]["httpGet"]
        (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == asked["port"]]
        return f"{asked['scheme'].lower()}://{self.address(name)}:{port}{asked['path']}"

    def run(self, name: str, *command: str) -> str:
        """What a command prints in the container."""
        return podman("exec", self.container(name), *command).stdout

    def log(self, name: str) -> str:
        ended = podman("logs", self.container(name))
        return ended.stdout + ended.stderr

    def _specified(self, name: str) -> Json:
        container: Json = self.deployments[name]["spec"]["template"]["spec"]["containers"][0]
        return container


@contextmanager
def network() -> Iterator[str]:
    """A network for the length of the block, and this machine's address in it."""
    podman("network", "create", "--disable-dns", _NETWORK)
    try:
        # The address exists as long as a container is in the network.
        kept = podman("run", "--detach", "--network", _NETWORK, BASE, "/bin/sleep", "infinity").stdout.strip()
        try:
            (made,) = json.loads(podman("network", "inspect", _NETWORK).stdout)
            yield made["subnets"][0]["gateway"]
        finally:
            podman("rm", "--force", "--time", "0", kept)
    finally:
        podman("network", "rm", "--force", _NETWORK)


@contextmanager
def playing(objects: Sequence[Json], secrets: Secrets, folder: Path) -> Iterator[Played]:
    """Plays a pod of each deployment among the objects for the length of the block."""
    deployments = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Deployment"}
    environment = _with_pause_image(folder)
    with ExitStack() as stack:
        for name in sorted(set(_in_environments(deployments.values()))):
            stack.enter_context(_secret(name, secrets[name], folder))
        for name, deployment in deployments.items():
            file = folder / f"{name}.yaml"
            file.write_text(json.dumps(_playable(deployment, secrets, folder)))
            stack.callback(podman, "pod", "rm", "--force", "--ignore", "--time", "0", name)
            podman("kube", "play", "--network", _NETWORK, file, environment=environment)
        yield Played(deployments)


def _with_pause_image(folder: Path) -> dict[str, str]:
    dockerfile = folder / "pause.Dockerfile"
    dockerfile.write_text(f'FROM {BASE}\nENTRYPOINT ["/bin/sleep", "infinity"]\n')
    build = ["buildah", "build", "--isolation", "chroot", "--layers", "--tag", _PAUSE, "--file", str(dockerfile)]
    subprocess.run([*build, str(folder)], check=True, capture_output=True)
    settings = folder / "containers.conf"
    settings.write_text(f'[engine]\ninfra_image = "{_PAUSE}"\n')
    return {"CONTAINERS_CONF": str(settings)}


def _in_environments(deployments: Iterable[Json]) -> Iterator[str]:
    """The names of the secrets that become environment variables."""
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            for variable in container["env"]:
                if "valueFrom" in variable:
                    yield variable["valueFrom"]["secretKeyRef"]["name"]


@contextmanager
def _secret(name: str, values: Mapping[str, str], folder: Path) -> Iterator[None]:
    """A secret in the only form from which podman 4.3 takes environment variables."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps({key: base64.b64encode(value.encode()).decode() for key, value in values.items()}))
    podman("secret", "create", name, file)
    try:
        yield
    finally:
        podman("secret", "rm", name)


def _playable(deployment: Json, secrets: Secrets, folder: Path) -> Json:
    """The pod of a deployment, as podman can run it."""
    name, template = deployment["metadata"]["name"], json.loads(json.dumps(deployment["spec"]["template"]))
    pod = template["spec"]
    for container in pod["containers"]:
        for part in _LEFT_OUT:
            container.pop(part, None)
    for volume in pod["volumes"]:
        if secret := volume.pop("secret", None):
            made = folder / f"{name}-{volume['name']}"
            _write_files(made, secret, secrets[secret["secretName"]], pod["securityContext"]["fsGroup"])
            volume["hostPath"] = {"path": str(made), "type": "Directory"}
    # By default, podman removes an init container that ends, and fails if it notices the end too late. It refuses the
    # checksum among the chart's annotations, which is longer than 63 characters.
    annotations = {"io.podman.annotations.init.container.type": "always"}
    metadata = {**template["metadata"], "name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def _write_files(folder: Path, secret: Json, values: Mapping[str, str], group: int) -> None:
    """The files of a secret, as a kubelet makes them: root's, and with an fsGroup, readable by that group."""
    folder.mkdir()
    items = secret.get("items") or [{"key": key, "path": key} for key in values]
    for item in items:
        file = folder / item["path"]
        file.write_text(values[item["key"]])
        os.chown(file, 0, group)
        file.chmod(secret["defaultMode"] | 0o040)
