"""Rules that schemas can't express: the resources of a rendering keep the profile `restricted` of Pod Security, and
everything that they name exists. Each rule yields one sentence per error.
"""

import json

TEMPLATES = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}

# https://kubernetes.io/docs/concepts/security/pod-security-standards/
RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected",
    "secret",
}
CONFINED = {"RuntimeDefault", "Localhost"}


def named(resource):
    return f"{resource['kind']} {resource['metadata']['name']}"


def pods(resources):
    """The name, the labels and the spec of each pod template."""
    for resource in resources:
        template = resource
        for step in TEMPLATES.get(resource["kind"], ()):
            template = template[step]
        if template is not resource or resource["kind"] == "Pod":
            yield named(resource), template["metadata"].get("labels", {}), template["spec"]


def containers(pod):
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind, [])


def of_kind(resources, *kinds):
    return [resource for resource in resources if resource["kind"] in kinds]


def restricted(resources):
    for name, _, pod in pods(resources):
        for namespace in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.get(namespace):
                yield f"{name}: {namespace}"
        for volume in pod.get("volumes", []):
            for kind in set(volume) - {"name"} - RESTRICTED_VOLUMES:
                yield f"{name}: a volume of the kind {kind}"
        of_pod = pod.get("securityContext", {})
        if "sysctls" in of_pod:
            yield f"{name}: sysctls"
        for container in containers(pod):
            where = f"{name}, container {container['name']}"
            own = container.get("securityContext", {})
            both = of_pod | own
            for context in (of_pod, own):
                for field in ("seLinuxOptions", "appArmorProfile", "windowsOptions"):
                    if field in context:
                        yield f"{where}: {field}"
            if both.get("runAsNonRoot") is not True or own.get("runAsUser") == 0:
                yield f"{where}: may run as root"
            if not both.get("runAsUser"):
                yield f"{where}: runAsUser is not set, or root"
            if both.get("seccompProfile", {}).get("type") not in CONFINED:
                yield f"{where}: no seccomp profile"
            if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
                yield f"{where}: may gain privileges"
            capabilities = own.get("capabilities", {})
            if capabilities.get("drop") != ["ALL"] or "add" in capabilities:
                yield f"{where}: keeps or adds capabilities"
            if own.get("procMount", "Default") != "Default":
                yield f"{where}: procMount"
            if any("hostPort" in port for port in container.get("ports", [])):
                yield f"{where}: a port of the host"


def house(resources):
    """Our own rules beyond that profile."""
    accounts = {}
    for account in of_kind(resources, "ServiceAccount"):
        accounts[account["metadata"]["name"]] = account
    for name, _, pod in pods(resources):
        account = accounts.get(pod.get("serviceAccountName"))
        if account is None:
            yield f"{name}: no service account of this tree"
        for holder in (account or {}, pod):
            if holder.get("automountServiceAccountToken") is not False:
                yield f"{name}: a token of the service account"
        if pod.get("enableServiceLinks") is not False:
            yield f"{name}: variables of services"
        for container in containers(pod):
            where = f"{name}, container {container['name']}"
            if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
                yield f"{where}: may write to its root"
            if "memory" not in container.get("resources", {}).get("limits", {}):
                yield f"{where}: no limit of memory"
            if {"cpu", "memory"} - set(container.get("resources", {}).get("requests", {})):
                yield f"{where}: no requests"
    for secret in of_kind(resources, "Secret"):
        yield f"{named(secret)}: real Secrets do not belong into this tree"
    for workload in of_kind(resources, "StatefulSet"):
        if workload["spec"].get("replicas") != 1:
            yield f"{named(workload)}: the embedded store has one writer"
    text = json.dumps(resources)
    if "ORDERFREE_INSECURE" in text:
        yield "ORDERFREE_INSECURE: what listens beyond loopback needs tokens"


def environment(container, config_maps):
    """The variables of a container whose values are known here."""
    known = {}
    for source in container.get("envFrom", []):
        known |= config_maps.get(source.get("configMapRef", {}).get("name"), {})
    return known | {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}


def references(resources, examples):
    """Everything that pods name exists: ConfigMaps, Secrets and their keys, files below mounts, ports."""
    config_maps = {}
    for config_map in of_kind(resources, "ConfigMap"):
        config_maps[config_map["metadata"]["name"]] = config_map.get("data", {})
    for name, labels, pod in pods(resources):
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for claimer in of_kind(resources, "StatefulSet"):
            if named(claimer) == name:
                for claim in claimer["spec"].get("volumeClaimTemplates", []):
                    volumes[claim["metadata"]["name"]] = {}
        for volume in volumes.values():
            secret = volume.get("secret", {}).get("secretName")
            if secret and secret not in examples:
                yield f"{name}: the Secret {secret} has no example"
        for container in containers(pod):
            mounts = {}
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    yield f"{name}: no volume {mount['name']}"
                mounts[mount["mountPath"]] = volumes.get(mount["name"], {})
            for source in container.get("envFrom", []):
                if source.get("configMapRef", {}).get("name") not in config_maps:
                    yield f"{name}: no ConfigMap for {source}"
            for entry in container.get("env", []):
                wanted = entry.get("valueFrom", {}).get("secretKeyRef")
                if wanted and wanted["key"] not in examples.get(wanted["name"], {}):
                    yield f"{name}: no example of a Secret with {wanted}"
            for variable, value in environment(container, config_maps).items():
                # Jobs get the same ConfigMap, and read only the settings of the store.
                is_read = labels.get("app.kubernetes.io/component") == "server"
                if not value.startswith("/") or not (is_read or "CASSANDRA" in variable):
                    continue
                folder, _, file = value.rpartition("/")
                if folder not in mounts:
                    yield f"{name}: {variable}={value}, where nothing is mounted"
                    continue
                secret = mounts[folder].get("secret", {}).get("secretName")
                if secret and file not in examples.get(secret, {}):
                    yield f"{name}: {variable}={value}, which the example of {secret} does not have"
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container.get(probe, {}).get("httpGet")
                if asked is not None and asked["port"] not in ports:
                    yield f"{name}: {probe} asks the port {asked['port']}"


def selected(resources, selector):
    """The labels and the port names of the pods that a selector matches."""
    for _, labels, pod in pods(resources):
        if selector and selector.items() <= labels.items():
            names = {port["name"] for one in containers(pod) for port in one.get("ports", [])}
            yield labels, names


def selectors(resources):
    for resource in of_kind(resources, "Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = resource["spec"]
        selector = spec.get("podSelector", spec.get("selector", {}))
        taken = list(selected(resources, selector.get("matchLabels", selector)))
        if not taken:
            yield f"{named(resource)} selects no pod"
        wanted = {port["targetPort"] for port in spec.get("ports", [])}
        for rule in spec.get("ingress", []):
            wanted |= {port["port"] for port in rule.get("ports", [])}
        for labels, ports in taken:
            if wanted - ports:
                yield f"{named(resource)}: {labels} has no port {sorted(wanted - ports, key=str)}"
            if resource["kind"] != "NetworkPolicy":
                if labels.get("app.kubernetes.io/component") != "server":
                    yield f"{named(resource)} also selects {labels}"
    for resource in of_kind(resources, *TEMPLATES):
        wanted = resource["spec"].get("selector", {}).get("matchLabels", {})
        for name, labels, pod in pods([resource]):
            if not wanted.items() <= labels.items():
                yield f"{name} does not select its own pods"
            for spread in pod.get("topologySpreadConstraints", []):
                if spread["labelSelector"]["matchLabels"] != wanted:
                    yield f"{name} spreads other pods than its own"
    for name, labels, _ in pods(resources):
        policies = of_kind(resources, "NetworkPolicy")
        for direction in ("Ingress", "Egress"):
            if not any(
                direction in policy["spec"]["policyTypes"]
                and policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
                for policy in policies
            ):
                yield f"{name}: no NetworkPolicy bounds its {direction}"
    for scaler in of_kind(resources, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        found = [
            resource for resource in of_kind(resources, target["kind"])
            if resource["metadata"]["name"] == target["name"]
        ]
        if len(found) != 1:
            yield f"{named(scaler)} scales {target}, which is not there"
        elif "replicas" in found[0]["spec"]:
            yield f"{named(found[0])}: its replicas are for the HorizontalPodAutoscaler to set"
    for monitor in of_kind(resources, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        services = [
            service for service in of_kind(resources, "Service")
            if wanted.items() <= service["metadata"].get("labels", {}).items()
            and service["metadata"].get("namespace") == monitor["metadata"].get("namespace")
        ]
        if not services:
            yield f"{named(monitor)} selects no Service"
        for service in services:
            ports = {port["name"] for port in service["spec"]["ports"]}
            for endpoint in monitor["spec"]["endpoints"]:
                if endpoint["port"] not in ports:
                    yield f"{named(monitor)}: {named(service)} has no port {endpoint['port']}"


def schemes(resources):
    """Clients of a server use TLS if and only if the server does."""
    speaks = "ORDERFREE_TLS_CERT" in json.dumps(resources)
    for name, _, pod in pods(resources):
        for container in containers(pod):
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = container.get(probe, {}).get("httpGet")
                if asked is not None and (asked.get("scheme") == "HTTPS") != speaks:
                    yield f"{name}: {probe} does not speak as the server does"
    for monitor in of_kind(resources, "ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            if (endpoint.get("scheme", "http") == "https") != speaks:
                yield f"{named(monitor)} does not speak as the server does"


def documents(resources):
    """JSON in ConfigMaps, such as dashboards, is valid."""
    for config_map in of_kind(resources, "ConfigMap"):
        for key, text in config_map.get("data", {}).items():
            if key.endswith(".json"):
                try:
                    json.loads(text)
                except ValueError as error:
                    yield f"{named(config_map)}: {key}: {error}"


def wrong(resources, examples):
    """All errors."""
    return [
        *restricted(resources),
        *house(resources),
        *references(resources, examples),
        *selectors(resources),
        *schemes(resources),
        *documents(resources),
    ]
