"""Nodes join, leave, are replaced, repaired and restored from an old snapshot, while pods count and fold. `run` calls it.

The steps are those of docs/operate/cassandra.md and docs/operate/backup.md. With folds at `all` they stay on. With folds
at `quorum` or `each_quorum` they are off while a node joins, leaves, is replaced or restored, which restarts the pods.

`orderfree load` reads at `all` meanwhile, because a quorum can miss updates until a replaced or restored node is repaired.
At the end everything is also read at `local_quorum`.
"""

import contextlib
import os
import pathlib
import shutil

from pods import TABLES, Broken, Pod, Recipe, cluster, follow, ring

PODS = 3
FIRST_PORT = 18_111
# The first rows are final after this time. From then on pods fold all the time.
FOLDING_AFTER_S = 110
CALM_S = 15
# Deletions are purged that soon, so rows of an old snapshot come back without them.
GC_GRACE_S = 60


class Topology(Recipe):
    """The recipe."""

    title = "Changes of the topology"

    def __init__(self, given):
        super().__init__(given)
        self.home = pathlib.Path(os.environ["ORDERFREE_CASSANDRA_HOME"])
        self.options = os.environ["CLUSTER_OPTIONS"]
        settings = {
            "ORDERFREE_CASSANDRA": cluster("contact-points", CLUSTER_NODES="3").strip(),
            "ORDERFREE_KEYSPACE": self.keyspace,
            "ORDERFREE_FOLD_CONSISTENCY": given.fold,
            "RUST_LOG": "info,scylla=off",
        }
        self.pods = [
            Pod(given.program, f"pod-{number + 1}", FIRST_PORT + number, self.folder, settings)
            for number in range(PODS)
        ]
        # A node that joins or replaces another one takes its data from the others.
        self.joins = self.folder / "join.yaml"
        self.joins.write_text("auto_bootstrap: true\n")

    def run(self):
        self.apply_schema()
        cluster("cql", 1, f"ALTER TABLE {self.keyspace}.shards WITH gc_grace_seconds = {GC_GRACE_S}")
        for pod in self.pods:
            pod.start()
        level = ("--consistency", "all", "--settled-consistency", "local_quorum")
        self.start_load("--read-every", "500ms", *level)
        with self.step("all is well, and a snapshot of node 2 is made"):
            self.hold(FOLDING_AFTER_S)
            self.take_snapshot()
            self.hold(CALM_S)
        for step in (self.join, self.leave, self.replace, self.repair_all, self.scrub):
            step()
        # Folds meet the rows that come back as soon as the node is up again, if folds are on.
        zombies = self.counts()["zombies"]
        self.restore()
        folds = self.counts()["folds"]
        with self.step("all is well again"):
            self.hold(FOLDING_AFTER_S)
        after = self.counts()
        self.diary.expect(after["folds"] > folds, "nothing was folded after the restore")
        self.diary.expect(after["zombies"] > zombies, "no row of the snapshot came back")
        report = self.end_load()
        self.expect_ring(3)
        self.ask_doctor(self.pods[0])
        return report

    def join(self):
        with self.step("node 4 joins"), self.folds_safe():
            cluster("restart", 4, CLUSTER_SETTINGS=str(self.joins))
            self.expect_ring(4)
            for node in (1, 2, 3):
                cluster("nodetool", node, "cleanup", self.keyspace)
            self.hold(CALM_S)

    def leave(self):
        with self.step("node 4 is decommissioned"), self.folds_safe():
            cluster("nodetool", 4, "decommission")
            cluster("kill", 4)
            shutil.rmtree(self.home / "node4")
            self.expect_ring(3)
            self.hold(CALM_S)

    def replace(self):
        with self.step("node 3 is killed, replaced and repaired"), self.folds_safe():
            cluster("kill", 3)
            shutil.rmtree(self.home / "node3")
            is_down = self.wait(120, lambda: ring(1).get("127.0.0.3") == "DN")
            self.diary.expect(is_down, "node 1 does not see that node 3 is down")
            self.hold(CALM_S)
            cluster(
                "restart",
                3,
                CLUSTER_NODES="3",
                CLUSTER_SETTINGS=str(self.joins),
                CLUSTER_OPTIONS=f"{self.options} -Dcassandra.replace_address_first_boot=127.0.0.3",
            )
            self.expect_ring(3)
            self.hold(CALM_S)
            self.repair([3])

    def repair_all(self):
        with self.step("every node is repaired"):
            self.repair([1, 2, 3])

    def scrub(self):
        what = "node 2 is scrubbed, put back from the snapshot before that, and repaired"
        with self.step(what), self.folds_off():
            cluster("nodetool", 2, "flush", self.keyspace)
            before = self.bytes_of(2)
            cluster("nodetool", 2, "scrub", self.keyspace, "shards")
            after = self.bytes_of(2)
            self.diary.say(f"scrub left {after:,} of {before:,} bytes of node 2")
            self.diary.expect(after < before / 2, "scrub lost nothing, so there was nothing to put back")
            self.hold(CALM_S)
            # Scrub can leave a damaged file, which can make the node stop by itself.
            with contextlib.suppress(Broken):
                cluster("nodetool", 2, "drain")
            cluster("kill", 2)
            folder = self.data_of(2, "shards")
            (snapshot,) = (folder / "snapshots").glob("pre-scrub-*")
            self.put_back(folder, snapshot)
            cluster("restart", 2, CLUSTER_NODES="3")
            self.expect_ring(3)
            self.repair([2])

    def restore(self):
        with self.step("node 2 is restored from the snapshot and repaired"), self.folds_safe():
            # Then nothing but the fence tells that the rows of the snapshot were folded.
            for node in (1, 3):
                cluster("nodetool", node, "compact", self.keyspace)
            cluster("nodetool", 2, "drain")
            cluster("kill", 2)
            for name in TABLES:
                self.put_back(self.data_of(2, name), self.folder / "early" / name)
            shutil.rmtree(self.home / "node2/commitlog")
            self.hold(CALM_S)
            cluster("restart", 2, CLUSTER_NODES="3")
            self.expect_ring(3)
            self.hold(CALM_S)
            self.repair([2])

    def put_back(self, folder, snapshot):
        """Replaces the SSTables of a table by those of a snapshot."""
        for file in folder.iterdir():
            if file.is_file():
                file.unlink()
        for file in snapshot.glob("*-*"):
            shutil.copy2(file, folder)

    def bytes_of(self, node):
        """The size of the data of all keys."""
        return sum(file.stat().st_size for file in self.data_of(node, "shards").glob("*-Data.db"))

    def take_snapshot(self):
        cluster("nodetool", 2, "snapshot", "-t", "early", self.keyspace)
        for name in TABLES:
            kept = self.folder / "early" / name
            kept.mkdir(parents=True)
            # An empty table need not have a snapshot.
            for file in (self.data_of(2, name) / "snapshots/early").glob("*-*"):
                shutil.copy2(file, kept)

    def data_of(self, node, name):
        """The folder of a table."""
        (folder,) = (self.home / f"node{node}/data" / self.keyspace).glob(f"{name}-*")
        return folder

    def folds_safe(self):
        """Folds that read below `all` are off while the topology changes."""
        return contextlib.nullcontext() if self.given.fold == "all" else self.folds_off()


follow(Topology)
