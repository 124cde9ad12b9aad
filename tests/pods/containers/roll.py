"""Rolls pods one after the other under load, and checks that nothing was lost. `rolling` calls it."""

import argparse
import hashlib
import pathlib
import secrets
import shutil
import signal
import socket
import statistics
import sys
import threading
import time

from clients import Client, Ledger, judge, value_of
from manifest import Manifest, Place
from pods import ENDPOINTS_LATE_S, Broken, Endpoints, Pod, podman

CLIENTS = 16
KEYS = 40
# Time under load before the first roll, between rolls, and with both pods of a roll.
ALONE_S, BETWEEN_S, BOTH_S = 6.0, 2.0, 2.0
# Longest time without an ack. In a healthy roll, the clients together get one every few milliseconds.
GAP_MAX_S = 2.0
# What no client may see in a healthy roll.
NEVER = (
    "unknown",
    "refused for good",
    "refused connections",
    "connections ended in silence",
    "nowhere to go",
)
# A healthy run takes a minute and a quarter.
LONGEST_S = 200


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rendered", type=pathlib.Path, required=True)
    parser.add_argument("--image", required=True)
    parser.add_argument("--contact-points", required=True)
    parser.add_argument("--keyspace", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--rolls", type=int, default=3)
    parser.add_argument("--signal", dest="by", default="TERM")
    return parser.parse_args()


def free_ports(names):
    """Free ports of this host."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = dict(zip(names, (one.getsockname()[1] for one in sockets)))
    for one in sockets:
        one.close()
    return ports


def policy(token):
    """A token with all rights."""
    return (
        f'[[token]]\nname = "containers"\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
        '[[token.grant]]\ngroup_prefix = ""\nverbs = ["read", "write", "admin"]\n'
    )


class Roll:
    """The scenario and its findings."""

    def __init__(self, given):
        self.given = given
        self.token = f"orderfree_{secrets.token_hex(32)}"
        cassandra = {"username": "cassandra", "password": "cassandra"}
        self.manifest = Manifest(
            given.rendered.read_text(),
            settings={
                "ORDERFREE_CASSANDRA": given.contact_points,
                "ORDERFREE_KEYSPACE": given.keyspace,
                "ORDERFREE_LOCAL_DC": "datacenter1",
                "ORDERFREE_REPLICATION": "datacenter1:3",
            },
            secrets={
                "orderfree-policy": {"policy.toml": policy(self.token)},
                "orderfree-cassandra": cassandra,
                "orderfree-cassandra-schema": cassandra,
            },
        )
        self.keys = [f"roll:{number % 4}/{number}" for number in range(KEYS)]
        self.endpoints, self.ledger = Endpoints(), Ledger()
        self.pods, self.wrong, self.values_right = [], [], 0

    def place(self, name, ports):
        folder = self.given.folder / "pods" / name
        return Place(f"{self.given.label}-{name}", self.given.image, self.given.label, ports, folder)

    def apply_schema(self):
        place = self.place("schema", {})
        job = Pod(self.manifest.schema(place), place, self.endpoints)
        job.play()
        podman("wait", job.id)
        job.end()
        if job.exit_code:
            raise Broken(f"the schema job failed: {job.complaints}")

    def new_pod(self):
        ports = free_ports(["http", "admin"])
        # For programs inside the pod, which do not know the port.
        self.manifest.settings["ORDERFREE_URL"] = f"http://127.0.0.1:{ports['http']}"
        place = self.place(str(len(self.pods) + 1), ports)
        pod = Pod(self.manifest.server(place), place, self.endpoints)
        self.pods.append(pod)
        pod.start()
        pod.ask_itself(self.token)
        return pod

    def end(self, pod, by):
        pod.stop(by)
        log = pod.end()
        if "everything is written" not in log:
            self.wrong.append(f"{pod.name} does not say that everything is written")
        errors = [line for line in log.splitlines() if '"level":"ERROR"' in line]
        self.wrong += [f"{pod.name} logged an error: {line}" for line in errors[:3]]

    def run(self):
        self.apply_schema()
        pod = self.new_pod()
        stop = threading.Event()
        clients = [
            Client(number, self.keys, self.endpoints, self.ledger, stop, self.token)
            for number in range(CLIENTS)
        ]
        began = time.monotonic()
        for client in clients:
            client.start()
        time.sleep(ALONE_S)
        for _ in range(self.given.rolls):
            fresh = self.new_pod()
            time.sleep(BOTH_S)
            self.end(pod, self.given.by)
            pod = fresh
            time.sleep(BETWEEN_S)
        stop.set()
        for client in clients:
            client.join(60)
        self.load_s = time.monotonic() - began
        self.judge(pod)
        self.end(pod, "TERM")
        self.wrong += [words for pod in self.pods for words in pod.complaints]

    def judge(self, pod):
        ledger = self.ledger
        for key in self.keys:
            words = judge(key, value_of(pod.address, key, self.token), ledger)
            if words:
                self.wrong.append(words)
            else:
                self.values_right += 1
        for what in NEVER:
            if ledger.counts[what]:
                example = ledger.examples[what]
                self.wrong.append(f"{ledger.counts[what]} {what}, such as: {example}")
        if ledger.longest_gap_s > GAP_MAX_S:
            self.wrong.append(f"no update was acked for {ledger.longest_gap_s:.1f} s")
        if any(not ledger.by_pod[pod.address] for pod in self.pods):
            self.wrong.append("a pod acked nothing")

    def report(self):
        """The figures, as Markdown."""
        counts, latencies = self.ledger.counts, sorted(self.ledger.latencies_s)
        lines = ["| | |", "| --- | --- |"]

        def row(what, value):
            lines.append(f"| {what} | {value} |")

        row("rolls", self.given.rolls)
        row("old pods ended by", f"SIG{self.given.by}")
        row("load", f"{self.load_s:.0f} s, {CLIENTS} clients, {KEYS} keys")
        row("updates acked", f"{counts['acked']:,} ({counts['acked'] / self.load_s:,.0f}/s)")
        row("updates unknown", counts["unknown"])
        row("answers `refused`, sent again", counts["refused"])
        row("connections refused", counts["refused connections"])
        row("connections ended by an answer", counts["connections ended by an answer"])
        row("connections ended in silence", counts["connections ended in silence"])
        if latencies:
            p99 = latencies[int(len(latencies) * 0.99)]
            row(
                "latency",
                f"median {statistics.median(latencies) * 1000:.1f} ms, 99 % {p99 * 1000:.0f} ms, "
                f"longest {latencies[-1] * 1000:.0f} ms",
            )
        row("longest time without an ack", f"{self.ledger.longest_gap_s * 1000:.0f} ms")
        row("values right", f"{self.values_right} of {KEYS}")
        lines += [
            "",
            "| pod | ready after | acked | peak memory | ended after | exit code |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for number, pod in enumerate(self.pods, 1):
            lines.append(
                f"| {number} | {pod.ready_after_s:.1f} s | {self.ledger.by_pod[pod.address]:,} | "
                f"{pod.peak_mb:.0f} MB | {pod.stopped_after_s:.1f} s | {pod.exit_code} |"
            )
        lines += [
            "",
            f"A pod is withdrawn {ENDPOINTS_LATE_S:.0f} s after SIGTERM. Half of the clients then leave it at "
            "their next request, the other half stay until it hangs up.",
            "",
        ]
        lines += [f"- **Wrong**: {words}" for words in self.wrong]
        return "\n".join(lines) + "\n"


def give_up(*_):
    raise Broken(f"not done within {LONGEST_S} s")


def main():
    given = arguments()
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST_S)
    shutil.rmtree(given.folder / "pods", ignore_errors=True)
    roll = Roll(given)
    try:
        roll.run()
    except (Broken, ValueError) as error:
        sys.exit(f"containers: {error}")
    print(roll.report(), end="")
    sys.exit(1 if roll.wrong else 0)


main()
