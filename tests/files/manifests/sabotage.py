"""Breaks rendered resources on purpose, each in one way, to notice a rule that no longer finds anything.
"""

import copy

import rules


def pod(resources, kind):
    return next(spec for name, _, spec in rules.pods(resources) if name.startswith(f"{kind} "))


def container(resources, kind="Deployment"):
    return pod(resources, kind)["containers"][0]


def one(resources, kind):
    return rules.of_kind(resources, kind)[0]


def config(resources):
    name = container(resources)["envFrom"][0]["configMapRef"]["name"]
    return next(resource for resource in resources if resource["metadata"]["name"] == name)


# A description of each breakage, and the function that does it.
BREAKAGES = {
    "the host's network": lambda r: pod(r, "Job").update(hostNetwork=True),
    "a folder of the host": lambda r: pod(r, "Deployment")["volumes"].append(
        {"name": "host", "hostPath": {"path": "/"}}
    ),
    "no word against root": lambda r: pod(r, "Deployment")["securityContext"].pop("runAsNonRoot"),
    "root": lambda r: container(r)["securityContext"].update(runAsUser=0),
    "no seccomp": lambda r: pod(r, "CronJob")["securityContext"].pop("seccompProfile"),
    "escalation": lambda r: container(r, "CronJob")["securityContext"].pop(
        "allowPrivilegeEscalation"
    ),
    "privileged": lambda r: container(r)["securityContext"].update(privileged=True),
    "capabilities": lambda r: container(r, "Job")["securityContext"]["capabilities"].update(
        add=["NET_ADMIN"]
    ),
    "no dropped capabilities": lambda r: container(r)["securityContext"].pop("capabilities"),
    "a port of the host": lambda r: container(r)["ports"][0].update(hostPort=8080),
    "a root that can be written to": lambda r: container(r)["securityContext"].pop(
        "readOnlyRootFilesystem"
    ),
    "a token": lambda r: pod(r, "CronJob").pop("automountServiceAccountToken"),
    "another account": lambda r: pod(r, "Job").update(serviceAccountName="default"),
    "no limit": lambda r: container(r)["resources"].pop("limits"),
    "no requests": lambda r: container(r, "Job")["resources"].pop("requests"),
    "a Secret": lambda r: r.append({"kind": "Secret", "metadata": {"name": "real"}}),
    "no tokens": lambda r: container(r)["env"].append(
        {"name": "ORDERFREE_INSECURE", "value": "true"}
    ),
    "a lost ConfigMap": lambda r: r.remove(config(r)),
    "a Secret without example": lambda r: pod(r, "Deployment")["volumes"][0]["secret"].update(
        secretName="other"
    ),
    "a key that no Secret has": lambda r: container(r, "Job")["env"][0]["valueFrom"][
        "secretKeyRef"
    ].update(key="user"),
    "a mount without volume": lambda r: pod(r, "CronJob")["volumes"].pop(),
    "a file that is not mounted": lambda r: container(r)["volumeMounts"].pop(),
    "a probe of no port": lambda r: container(r)["readinessProbe"]["httpGet"].update(port="web"),
    "a probe without TLS": lambda r: container(r)["livenessProbe"]["httpGet"].pop("scheme"),
    "a monitor without TLS": lambda r: one(r, "ServiceMonitor")["spec"]["endpoints"][0].pop(
        "scheme"
    ),
    "a Service of a port that is not there": lambda r: one(r, "Service")["spec"]["ports"][1].update(
        targetPort="metrics"
    ),
    "a Service of all pods": lambda r: one(r, "Service")["spec"]["selector"].pop(
        "app.kubernetes.io/component"
    ),
    "a budget of nothing": lambda r: one(r, "PodDisruptionBudget")["spec"]["selector"][
        "matchLabels"
    ].update({"app.kubernetes.io/component": "web"}),
    "no policy for jobs": lambda r: r.remove(one(r, "NetworkPolicy")),
    "a policy of no port": lambda r: rules.of_kind(r, "NetworkPolicy")[-1]["spec"]["ingress"][0][
        "ports"
    ][0].update(port=9090),
    "two who set replicas": lambda r: one(r, "Deployment")["spec"].update(replicas=3),
    "a scaler of nothing": lambda r: one(r, "HorizontalPodAutoscaler")["spec"][
        "scaleTargetRef"
    ].update(name="web"),
    "a spread of other pods": lambda r: pod(r, "Deployment")["topologySpreadConstraints"][0][
        "labelSelector"
    ].update(matchLabels={"app": "web"}),
    "a monitor of no Service": lambda r: one(r, "ServiceMonitor")["spec"]["selector"].update(
        matchLabels={"app": "web"}
    ),
    "a monitor of another namespace": lambda r: one(r, "ServiceMonitor")["metadata"].update(
        namespace="monitoring"
    ),
    "a monitor of no port": lambda r: one(r, "ServiceMonitor")["spec"]["endpoints"][0].update(
        port="metrics"
    ),
    "a broken dashboard": lambda r: config(r)["data"].update({"some.json": "{"}),
}


def unseen(resources, examples):
    """The breakages that no rule finds in a rendering that has everything."""
    for name, breakage in BREAKAGES.items():
        broken = copy.deepcopy(resources)
        breakage(broken)
        if not rules.wrong(broken, examples):
            yield name
