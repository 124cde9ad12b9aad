"""A keyspace gets a third replica, then a second data centre, and then loses that for good, while pods count. `run` calls it.

The steps are those of docs/operate/regions.md. `orderfree load` counts in `east` all the time and reads at `local_quorum`, so
it notices if a step makes a read miss anything. Some keys are counted in `east` once, at the beginning: only a rebuild or a
repair can bring them to `west`. Pods in `west` count keys of their own, once there are some.
"""

import re
import secrets
import time

from pods import Broken, Pod, Recipe, cluster, follow

EAST, WEST = (1, 2, 3), (4, 5, 6)
FIRST_PORT = 18_121
# The first rows are final after this time. From then on pods fold all the time.
FOLDING_AFTER_S = 110
CALM_S = 20
KEYS = 40
WITHIN_S = 120


class Growth(Recipe):
    """The recipe."""

    title = "A data centre comes and goes"

    def __init__(self, given):
        super().__init__(given)
        self.pods = [self.pod("east", number, EAST) for number in range(2)]
        self.west = [self.pod("west", number, WEST) for number in range(2)]
        self.counted = {}

    def pod(self, side, number, nodes):
        settings = {
            "ORDERFREE_CASSANDRA": ",".join(f"127.0.1.{node}:9042" for node in nodes),
            "ORDERFREE_LOCAL_DC": side,
            "ORDERFREE_KEYSPACE": self.keyspace,
            "ORDERFREE_FOLD_CONSISTENCY": self.given.fold,
            "RELAY_SIDE": side,
            "RUST_LOG": "info,scylla=off",
        }
        port = FIRST_PORT + number + (10 if side == "west" else 0)
        return Pod(self.given.program, f"{side}-{number + 1}", port, self.folder, settings)

    def run(self):
        for node in EAST:
            cluster("restart", node)
        self.apply_schema(ORDERFREE_REPLICATION="east:2")
        for pod in self.pods:
            pod.start()
        level = ("--consistency", "local_quorum", "--settled-consistency", "each_quorum")
        self.start_load("--read-every", "200ms", *level)
        with self.step("east counts on two replicas"):
            self.count("early", self.pods)
            self.hold(FOLDING_AFTER_S)
        for step in (self.raise_factor, self.add_west, self.count_in_west, self.lose_west):
            step()
        report = self.end_load()
        self.expect_counted(self.pods, "local_quorum")
        self.ask_doctor(self.pods[0])
        return report

    def raise_factor(self):
        with self.step("east gets a third replica, and is repaired"), self.folds_off():
            self.replicate("east:3")
            self.hold(CALM_S)
            self.repair(EAST)
            self.hold(CALM_S)

    def add_west(self):
        with self.step("west is added, rebuilt and repaired"), self.folds_off():
            cluster("start")
            self.expect_ring(6)
            self.replicate("east:3,west:3")
            self.hold(CALM_S)
            for node in WEST:
                cluster("nodetool", node, "rebuild", "-ks", self.keyspace, "--", "east")
            self.repair(WEST)
            for pod in self.west:
                self.others.append(pod)
                pod.start(ORDERFREE_FOLD="off")
            # Folds would bring the rows, too. No hint does: without replicas in west, no node kept any for it.
            self.expect_counted(self.west, "local_quorum")
            self.hold(CALM_S)

    def count_in_west(self):
        with self.step("both sides count"):
            self.count("grown", self.west, again=self.pods)
            self.expect_counted(self.west + self.pods, "each_quorum")
            self.hold(FOLDING_AFTER_S)
            self.expect_counted(self.west + self.pods, "local_quorum")

    def count(self, group, pods, again=None):
        """Counts keys, each once. The same updates can be sent again to the pods of the other side."""
        for number in range(KEYS):
            key = f"{group}-{number % 5}/{number}"
            weight = secrets.randbits(40) + 1
            outcome, headers = pods[number % 2].insist(key, weight)
            self.diary.expect(outcome == "acked", f"{key} is {outcome}")
            if again:
                again[number % 2].add(key, weight, **headers)
            self.counted[key] = weight

    def lose_west(self):
        with self.step("west is lost, and taken out of the keyspace"):
            ids = self.host_ids(WEST)
            # One node is stopped in order, which Cassandra remembers, and the others are killed.
            *killed, stopped = WEST
            self.others.clear()
            for pod in self.west:
                pod.process.kill()
                pod.process.wait()
            cluster("drain", stopped)
            for node in killed:
                cluster("kill", node)
            self.hold(CALM_S)
            before = self.counts()["folds"]
            self.hold(CALM_S)
            waits = self.counts()["folds"] == before
            self.diary.expect(waits, "east folds although west is away")
            self.forget(stopped)
            self.replicate("east:3")
            cluster(
                "cql",
                1,
                "ALTER KEYSPACE system_distributed WITH replication = "
                "{'class': 'NetworkTopologyStrategy', 'east': 3}",
            )
            began = time.monotonic()
            goes_on = self.wait(WITHIN_S, lambda: self.counts()["folds"] > before)
            self.diary.expect(goes_on, "east does not fold after west was taken out")
            self.diary.say(f"east folds again after {time.monotonic() - began:.0f} s")
            for node in killed:
                cluster("nodetool", 1, "removenode", ids[node])
            self.expect_ring(3)
            self.hold(CALM_S)

    def forget(self, stopped):
        """Makes Cassandra forget a node that was stopped in order. Until then it refuses to change the replication."""
        is_known = self.wait(WITHIN_S, lambda: "shutdown,true" in cluster("nodetool", 1, "gossipinfo"))
        self.diary.expect(is_known, f"node 1 does not know that node {stopped} was stopped in order")
        try:
            self.alter("east:3")
        except Broken as error:
            self.diary.say(f"while a node is known as stopped in order: {error}")
        else:
            self.diary.wrong("the replication can be altered while a node is known as stopped in order")
        cluster("nodetool", 1, "assassinate", f"127.0.1.{stopped}")

    def alter(self, wanted):
        factors = [one.split(":") for one in wanted.split(",")]
        options = ", ".join(f"'{name}': {factor}" for name, factor in factors)
        replication = f"{{'class': 'NetworkTopologyStrategy', {options}}}"
        cluster("cql", 1, f"ALTER KEYSPACE {self.keyspace} WITH replication = {replication}")

    def replicate(self, wanted):
        """Changes the replication, and waits until all pods of east know it. Their answers must say what they cover."""
        self.alter(wanted)
        began = time.monotonic()
        if not self.wait(WITHIN_S, lambda: all(self.knows(pod, wanted) for pod in self.pods)):
            raise Broken(f"pods do not learn of the replication {wanted}")
        self.diary.say(f"all pods know the replication {wanted} after {time.monotonic() - began:.0f} s")
        covers = ("east", False) if "west" in wanted else (None, True)
        for pod in self.pods:
            said = lambda pod=pod: self.covered(pod) == covers
            self.diary.expect(self.wait(WITHIN_S, said), f"with {wanted}, a read of {pod.name} covers {self.covered(pod)}")

    def covered(self, pod):
        """What a read by the pod says that it covers."""
        _, answer = pod.read(next(iter(self.counted)), "local_quorum")
        return answer.get("datacenter"), answer.get("exact")

    def knows(self, pod, wanted):
        return pod.ask("GET", "/version")[1].get("replication") == wanted

    def host_ids(self, nodes):
        text = cluster("nodetool", 1, "status")
        found = dict(re.findall(r"^U\S+ +(\S+) .* ([0-9a-f-]{36}) ", text, re.MULTILINE))
        return {node: found[f"127.0.1.{node}"] for node in nodes}

    def expect_counted(self, pods, level):
        for key, weight in self.counted.items():
            for pod in pods:
                status, answer = pod.read(key, level)
                value = int(answer["value"]) if status == 200 else f"status {status}"
                words = f"{key} is {value} at {level} from {pod.name}, not {weight}"
                self.diary.expect(value == weight, words)


follow(Growth)
