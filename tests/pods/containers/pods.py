"""Pods in podman, with the work of a kubelet and of a Service's endpoints."""

import json
import pathlib
import subprocess
import threading
import time
import urllib.error
import urllib.request

import yaml

# How long after SIGTERM balancers still send new connections to a pod. The server's grace period of 5 s covers that.
ENDPOINTS_LATE_S = 1.0


class Broken(Exception):
    """An error after which the run can't continue."""


def podman(*arguments):
    done = subprocess.run(["podman", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise Broken(f"podman {arguments[0]} failed: {' '.join(done.stderr.split())[:500]}")
    return done.stdout


def logs(container):
    """A container's output on both streams."""
    words = ["podman", "logs", container]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def last_words(container):
    return (logs(container).splitlines() or ["nothing"])[-1]


def passes(probe):
    url = f"http://127.0.0.1:{probe.port}{probe.path}"
    try:
        with urllib.request.urlopen(url, timeout=probe.within_s) as answer:
            return answer.status < 400
    except (OSError, urllib.error.HTTPError):
        return False


class Endpoints:
    """The addresses for new connections."""

    def __init__(self):
        self.lock = threading.Lock()
        self.addresses = ()

    def add(self, address):
        with self.lock:
            self.addresses = (*self.addresses, address)

    def remove(self, address):
        with self.lock:
            self.addresses = tuple(other for other in self.addresses if other != address)


class Pod:
    """A pod from its start to its removal."""

    def __init__(self, plan, place, endpoints):
        self.plan, self.place, self.endpoints = plan, place, endpoints
        self.address = ("127.0.0.1", place.ports.get("http", 0))
        self.ended = threading.Event()
        self.complaints = []
        self.ready_after_s = self.stopped_after_s = None

    @property
    def name(self):
        return self.place.name

    def play(self):
        """Starts it, and returns at once."""
        file = self.place.folder / "pod.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump_all(self.plan.documents))
        self.started = time.monotonic()
        podman("play", "kube", file)
        run = f"label=orderfree-test={self.place.label}"
        found = json.loads(podman("ps", "--all", "--filter", run, "--format", "json"))
        mine = [one for one in found if one["Names"][0].startswith(f"{self.name}-")]
        if len(mine) != 1:
            raise Broken(f"{self.name} has {len(mine)} containers instead of one")
        self.id, self.pod = mine[0]["Id"], mine[0]["Pod"]

    def start(self):
        """Starts it, waits until it is ready, and adds it to the endpoints."""
        self.play()
        self.wait("startup")
        self.wait("readiness")
        self.ready_after_s = time.monotonic() - self.started
        self.endpoints.add(self.address)
        self.kubelet = threading.Thread(target=self.watch, daemon=True)
        self.kubelet.start()

    def wait(self, which):
        """Probes until one passes."""
        probe = self.plan.probes[which]
        for _ in range(probe.failures):
            if passes(probe):
                return
            if self.state()["Status"] != "running":
                raise Broken(f"{self.name} ended at its start; its last words: {last_words(self.id)}")
            time.sleep(probe.every_s)
        raise Broken(f"{self.name} has no {which} in time; its last words: {last_words(self.id)}")

    def watch(self):
        """Checks that a running pod stays alive and ready."""
        probes = {name: self.plan.probes[name] for name in ("readiness", "liveness")}
        next_at = dict.fromkeys(probes, time.monotonic())
        failures = dict.fromkeys(probes, 0)
        while not self.ended.wait(0.2):
            for name, probe in probes.items():
                if time.monotonic() < next_at[name]:
                    continue
                next_at[name] += probe.every_s
                failures[name] = 0 if passes(probe) else failures[name] + 1
                if failures[name] >= probe.failures and not self.ended.is_set():
                    self.complaints.append(f"{self.name} failed its {name} probe")

    def stop(self, signal):
        """Ends it as Kubernetes does: SIGTERM, some time in which clients still come, and SIGKILL at the end of the grace
        period. Any other signal is sabotage, and is sent to the container before that."""
        self.ended.set()
        self.kubelet.join()
        self.look()
        if signal != "TERM":
            podman("kill", "--signal", signal, self.id)
        late = threading.Timer(ENDPOINTS_LATE_S, self.endpoints.remove, [self.address])
        late.start()
        began = time.monotonic()
        podman("pod", "stop", "--time", self.plan.grace_s, self.pod)
        self.stopped_after_s = time.monotonic() - began
        late.join()

    def state(self):
        return json.loads(podman("inspect", "--format", "{{json .State}}", self.id))

    def look(self):
        """The rights and the resources of its processes."""
        pid = self.state()["Pid"]
        if not pid:
            raise Broken(f"{self.name} ended by itself; its last words: {last_words(self.id)}")
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        self.peak_mb = int(fields["VmHWM"].split()[0]) / 1000
        root = pathlib.Path(f"/proc/{pid}/mountinfo").read_text()
        options = [line.split()[5] for line in root.splitlines() if line.split()[4] == "/"]
        found = {
            "user": podman("top", self.id, "user").split()[1],
            "capabilities": fields["CapBnd"].strip("0 ") or "none",
            "no new privileges": fields["NoNewPrivs"].strip(),
            "seccomp": fields["Seccomp"].strip(),
            "root": options[-1].split(",")[0],
        }
        wanted = {
            "user": "65532",
            "capabilities": "none",
            "no new privileges": "1",
            "seccomp": "2",
            "root": "ro",
        }
        self.complaints += [
            f"{self.name} has {what} {found[what]} instead of {wanted[what]}"
            for what in wanted
            if found[what] != wanted[what]
        ]

    def ask_itself(self, token):
        """Runs the image's own health check, which Kubernetes ignores, and its client, which needs only what the image has."""
        for what in (["health"], ["add", "counter/roll:itself/asked", "1"]):
            try:
                podman("exec", "--env", f"ORDERFREE_TOKEN={token}", self.id, "orderfree", *what)
            except Broken as error:
                self.complaints.append(f"{self.name}: `orderfree {what[0]}` inside it: {error}")

    def end(self):
        """Checks how it ended, keeps its log and removes it."""
        state, log = self.state(), logs(self.id)
        (self.place.folder / "log").write_text(log)
        self.exit_code = state["ExitCode"]
        restarts = int(podman("inspect", "--format", "{{.RestartCount}}", self.id))
        podman("pod", "rm", "--force", self.pod)
        if self.exit_code:
            self.complaints.append(f"{self.name} ended with exit code {self.exit_code}")
        if restarts or state["OOMKilled"]:
            self.complaints.append(f"{self.name} was started again, {restarts} times")
        return log
