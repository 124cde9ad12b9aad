"""Turns the output of `kubectl kustomize` into input of `podman play kube`, on a network that all pods share with the
host.

The pod keeps its arguments, environment, mounts, resources and security contexts. Settings that two pods on one host
can't share are changed: name, ports, and where Cassandra is. Some work of the kubelet is unknown to podman 4.3. It is
removed here and done by pods.py: probes (podman would run curl inside the container), the grace period, and the files of
Secrets, which belong to the pod's group.
"""

import copy
import os
import pathlib
from dataclasses import dataclass

import yaml


@dataclass(frozen=True)
class Probe:
    """An HTTP probe of the kubelet."""

    path: str
    port: int
    every_s: float
    within_s: float
    failures: int


@dataclass(frozen=True)
class Plan:
    """A pod to play, and the rest of its manifest, which is the kubelet's work."""

    documents: list
    probes: dict
    grace_s: int


@dataclass(frozen=True)
class Place:
    """The settings of one pod on this host."""

    name: str
    image: str
    label: str
    ports: dict  # by the name that the manifest gives them
    folder: pathlib.Path  # for the files of Secrets


class Manifest:
    """Rendered resources, the settings that replace the ConfigMap's, and the Secrets."""

    def __init__(self, rendered, settings, secrets):
        self.documents = [document for document in yaml.safe_load_all(rendered) if document]
        self.settings = settings
        self.secrets = secrets

    def the(self, kind):
        """The only resource of a kind."""
        found = [document for document in self.documents if document["kind"] == kind]
        if len(found) != 1:
            raise ValueError(f"the manifests have {len(found)} of the kind {kind} instead of one")
        return copy.deepcopy(found[0])

    def server(self, place):
        """The Deployment, with one replica."""
        deployment = self.the("Deployment")
        deployment["metadata"]["name"] = place.name
        deployment["spec"]["replicas"] = 1
        template = deployment["spec"]["template"]
        template["metadata"]["labels"]["orderfree-test"] = place.label
        return self.plan(deployment, template["spec"], place)

    def schema(self, place):
        """The Job as a pod, for podman knows no jobs."""
        template = self.the("Job")["spec"]["template"]
        labels = template["metadata"]["labels"] | {"orderfree-test": place.label}
        metadata = {"name": place.name, "labels": labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        return self.plan(pod, template["spec"], place)

    def plan(self, resource, spec, place):
        (container,) = spec["containers"]
        config = self.the("ConfigMap")
        own = {name: place.ports[port] for name, port in LISTENERS.items() if port in place.ports}
        config["data"] |= self.settings | {name: f"0.0.0.0:{port}" for name, port in own.items()}
        container["image"] = place.image
        # The container's own variables would override the ConfigMap's.
        container["env"] = [
            self.variable(entry)
            for entry in container.get("env", [])
            if entry["name"] not in config["data"] and self.is_there(entry)
        ]
        probes = {
            name.removesuffix("Probe"): probe(container.pop(name), place.ports)
            for name in PROBES
            if name in container
        }
        # These are the host's.
        container.pop("ports", None)
        spec["hostNetwork"] = True
        group = spec["securityContext"].get("fsGroup")
        for volume in spec.get("volumes", []):
            self.fill(volume, group, place)
        grace_s = spec.get("terminationGracePeriodSeconds", 30)
        return Plan([config, resource], probes, grace_s)

    def is_there(self, entry):
        """Whether a variable has a value. One from an optional Secret that is missing has none."""
        source = entry.get("valueFrom", {}).get("secretKeyRef")
        return not source or source["name"] in self.secrets or not source.get("optional")

    def variable(self, entry):
        source = entry.get("valueFrom", {}).get("secretKeyRef")
        if not source:
            return entry
        return {"name": entry["name"], "value": self.secrets[source["name"]][source["key"]]}

    def fill(self, volume, group, place):
        """Writes a Secret's files into a folder, with the permissions that the kubelet sets."""
        secret = volume.pop("secret")
        folder = place.folder / volume["name"]
        folder.mkdir(parents=True)
        if secret["secretName"] not in self.secrets and not secret.get("optional"):
            raise ValueError(f"there is no Secret {secret['secretName']}")
        for name, text in self.secrets.get(secret["secretName"], {}).items():
            file = folder / name
            file.write_text(text)
            if os.geteuid() == 0 and group is not None:
                os.chown(file, 0, group)
                file.chmod(secret.get("defaultMode", 0o644))
        volume["hostPath"] = {"path": str(folder), "type": "Directory"}


# The variables of the addresses on which a server listens, and the manifest's names of the ports.
LISTENERS = {"ORDERFREE_LISTEN": "http", "ORDERFREE_ADMIN_LISTEN": "admin"}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def probe(spec, ports):
    return Probe(
        path=spec["httpGet"]["path"],
        port=ports[spec["httpGet"]["port"]],
        every_s=spec.get("periodSeconds", 10),
        within_s=spec.get("timeoutSeconds", 1),
        failures=spec.get("failureThreshold", 3),
    )
