"""Two data centres count the same keys. One is killed and comes back, the link between them is cut and healed, and keys are
reset. `run` calls it.

Three sorts of clients count, each with a check of its own:

- `orderfree load` sends updates to the pods of both sides, half of them with ids. An update with an id that was not
  acknowledged, and one in ten that was, is sent again to a random pod of any side. In the end every key has to be exact.
- Beats: on each side one client adds 1 to a key of its own, four times a second, and one client reads the keys of both.
  A read has to see all that its own side acknowledged. What it misses of the other side is stale, and is measured. In every
  phase, a side whose nodes run has to answer both clients.
- Quiet keys are counted while a side is away, and then left alone. They show when both sides agree again. Half of their
  updates have an id and are sent to both sides.

Two more keys are counted while nodes keep no hints for the other side. One comes there by a fold, and the other by a repair.
"""

import collections
import concurrent.futures
import os
import random
import secrets
import signal
import subprocess
import threading
import time
import traceback

from pods import (
    COUNTED,
    REQUEST_WITHIN_S,
    RESETS_AGE_S,
    TIMES,
    Pod,
    Recipe,
    cluster,
    follow,
    millis,
    quantile,
    ring,
    table,
    uuid7,
)

NODES = {"east": (1, 2, 3), "west": (4, 5, 6)}
SIDES = tuple(NODES)
OTHER = {"east": "west", "west": "east"}
REPLICATION = "east:3,west:3"
PODS_PER_SIDE = 2
FIRST_PORT = 18_101
BEAT_S = 0.25
# Quiet keys of each side and each time, and the groups that they are spread over.
QUIET_KEYS, QUIET_GROUPS = 20, 5
RESET_KEYS = 10
# The first rows are final after this time. With less, there would be no fold before the first fault.
CALM_MIN_S = 110
# A pod knows after three looks, 10 s apart, that no quorum answers. Nodes notice a dead one after 7 s. The log says that folds
# wait when they have failed for a minute.
AWAY_MIN_S, HEALED_MIN_S = 80, 30
# Longer rounds would show no more. A long run has more rounds.
AWAY_MAX_S, HEALED_MAX_S = 120, 60
AGREE_WITHIN_S = 300
# From the loss of a side to the line in the log. A minute later there is no fresh clock of that side, so from then on all folds
# fail, and another minute later the log says it. A sweep can be late by half a minute.
WAITING_SAID_WITHIN_S = 180
GOING_ON_SAID_WITHIN_S = 120
# No fold takes a row before this time after its first update: a lifetime and a cutoff.
FINAL_AFTER_S = 90
# A sweep begins every 30 s, and takes longer on a slow machine.
SWEPT_WITHIN_S = 300
RESET_WITHIN_S = 180
FOLD_WITHIN_S = 30
# Time limit of a command that can't know its data centre.
GUESS_WITHIN_S = 60
# A client waits for so long for a side that can be away.
AWAY_ANSWER_S = 3
# One request can hang for half of this time, so few answers in a shorter phase prove nothing.
PHASE_LEAST_S = 2 * REQUEST_WITHIN_S
# A side must answer at least this share of the requests that its clients send at full speed. They wait for each answer, so the
# share was 0.6 on a busy machine with two cores.
ANSWERED_LEAST = 0.25
# At most this share of the requests that were sent may fail. Half of them fail while one of two pods restarts, which takes a
# tenth of a cut, or longer on a busy machine.
FAILED_MOST = 0.4


# What happened on a side in a phase: whether its nodes were away, by how much the counters of its pods grew, and what its
# clients noted.
Row = collections.namedtuple("Row", "phase took_s side was_away grown seen")
# What a side counted while its nodes kept no hints: the key that a fold has to bring to the other side, the key that a repair
# has to bring, the value of each, and the time before the first update.
Lost = collections.namedtuple("Lost", "side swept repaired weight at")


def placement(side):
    """How the log and the doctor of a pod name its place."""
    return f"data centre {side}, replicas {REPLICATION}"


class Phases:
    """What the beats and the pods of each side did in each phase."""

    def __init__(self, pods):
        self.lock, self.pods = threading.Lock(), pods
        self.name, self.away, self.began, self.rows, self.fresh = None, None, None, [], {}

    def begin(self, name, away=None):
        """Begins a phase. The nodes of the side that is named as away need not answer in it."""
        self.end()
        with self.lock:
            self.name, self.away, self.began = name, away, time.monotonic()
            self.fresh = {side: collections.defaultdict(list) for side in SIDES}
        self.before = self.metrics()

    def end(self):
        if self.name is None:
            return
        after, took_s = self.metrics(), time.monotonic() - self.began
        with self.lock:
            for side in SIDES:
                grown = {name: after[side][name] - self.before[side][name] for name in after[side]}
                self.rows.append(Row(self.name, took_s, side, side == self.away, grown, self.fresh[side]))
            self.name = None

    def note(self, side, what, value):
        with self.lock:
            if self.name is not None:
                self.fresh[side][what].append(value)

    def metrics(self):
        """The counters of the pods of each side."""
        found = {}
        for side, pods in self.pods.items():
            totals = [pod.totals() for pod in pods]
            found[side] = {
                name: sum(one[metric] for one in totals) for name, metric in COUNTED.items()
            }
        return found

    def standstills(self):
        """Says which side did not go on in which phase, although its nodes ran."""
        for name, took_s, side, was_away, _, seen in self.rows:
            if was_away or took_s < PHASE_LEAST_S:
                continue
            beats = took_s / BEAT_S
            # A reader reads the keys of both sides in each turn.
            for what, due, done, undone in (
                ("updates", beats, "took", "unacked"),
                ("reads", beats * len(SIDES), "read", "unread"),
            ):
                answered, failed = len(seen[done]), len(seen[undone])
                if answered < due * ANSWERED_LEAST or failed > (answered + failed) * FAILED_MOST:
                    yield (
                        f"{side} did not go on in the {took_s:.0f} s of `{name}`: of {due:.0f} {what} at full speed, "
                        f"{answered} were answered and {failed} failed"
                    )

    def table(self):
        heads = ["phase", "side", "acked", "refused", "unknown", "folds", "p50", "p99", "longest"]
        heads += ["reads", "stale", "oldest miss", "no answer"]
        rows = []
        for name, took_s, side, _, grown, seen in self.rows:
            times, ages = seen["took"], [age for age in seen["age"] if age]
            counts = [f"{grown[one]:,.0f}" for one in ("acked", "refused", "unknown", "folds")]
            latencies = [quantile(times, share) for share in (0.5, 0.99, 1.0)]
            latencies = ["–" if one is None else millis(one) for one in latencies]
            reads = [f"{len(seen['read']):,}", f"{len(ages):,}", millis(max(ages)) if ages else "–"]
            reads.append(f"{len(seen['unread']):,}")
            rows.append([f"{name}, {took_s:.0f} s", side, *counts, *latencies, *reads])
        return table(heads, rows)


class Client(threading.Thread):
    """Asks the pods of a side in turn, again and again."""

    def __init__(self, side, pods, phases, stop, diary):
        super().__init__(daemon=True)
        self.side, self.pods, self.phases, self.stopping, self.diary = side, pods, phases, stop, diary
        self.turns = 0

    def run(self):
        try:
            while not self.stopping.wait(BEAT_S):
                self.turn(self.pods[self.turns % len(self.pods)])
                self.turns += 1
        except Exception:
            self.diary.wrong(f"a client in {self.side} has ended: {traceback.format_exc(limit=-3)}")


class Beat(Client):
    """Adds 1 to the key of its side."""

    def __init__(self, side, *more):
        super().__init__(side, *more)
        self.key = f"beats/{side}"
        self.lock = threading.Lock()
        # The times of acks. What was refused does not count as begun.
        self.acked, self.begun, self.unknown = [], 0, 0

    def turn(self, pod):
        with self.lock:
            self.begun += 1
        began = time.monotonic()
        outcome = pod.add(self.key, 1)
        now = time.monotonic()
        with self.lock:
            if outcome == "acked":
                self.acked.append(now)
            elif outcome == "refused":
                self.begun -= 1
            else:
                self.unknown += 1
        self.phases.note(self.side, "took" if outcome == "acked" else "unacked", now - began)

    def known(self):
        """The acked updates, and the most that can count."""
        with self.lock:
            return len(self.acked), self.begun

    def age_of(self, value, at):
        """How long ago the oldest update was acked that a value misses. Unknown updates can make it seem younger."""
        with self.lock:
            return at - self.acked[value] if 0 <= value < len(self.acked) else 0.0


class Reader(Client):
    """Reads the keys of all beats on one side, at a quorum of that side."""

    def __init__(self, beats, *more):
        super().__init__(*more)
        self.beats = beats

    def turn(self, pod):
        for side, beat in self.beats.items():
            self.look(pod, side, beat)

    def look(self, pod, side, beat):
        (acked, _), began = beat.known(), time.monotonic()
        # A refused update counts as begun until it is refused.
        status, answer = pod.read(beat.key, "local_quorum")
        _, most = beat.known()
        if status != 200:
            self.phases.note(self.side, "unread", side)
            return
        self.phases.note(self.side, "read", side)
        value, expect = int(answer["value"]), self.diary.expect
        shown = f"a read of {beat.key} from {pod.name}"
        expect(answer["exact"] is False, f"{shown} says that it is exact")
        expect(answer.get("datacenter") == self.side, f"{shown} names {answer.get('datacenter')}")
        expect(value <= most, f"{shown} is {value}, above {most}")
        if side == self.side:
            expect(value >= acked, f"{shown} is {value}, below {acked}, which its own side acked")
        else:
            age = beat.age_of(value, began) if value < acked else 0.0
            self.phases.note(self.side, "age", age)


class Regions(Recipe):
    """The recipe."""

    title = "Two data centres"

    def __init__(self, given):
        super().__init__(given)
        self.sides = {side: [] for side in SIDES}
        for number in range(PODS_PER_SIDE):
            for side in SIDES:
                self.sides[side].append(self.pod(side, number))
                self.pods.append(self.sides[side][-1])
        self.phases = Phases(self.sides)
        # The values of quiet keys, by key.
        self.quiet = {}
        # The values of keys with a row that no fold takes in this run.
        self.unfolded = {}
        self.known = []

    def pod(self, side, number):
        settings = {
            "ORDERFREE_CASSANDRA": ",".join(f"127.0.1.{node}:9042" for node in NODES[side]),
            "ORDERFREE_LOCAL_DC": side,
            "ORDERFREE_KEYSPACE": self.keyspace,
            "ORDERFREE_FOLD_CONSISTENCY": self.given.fold,
            "RELAY_SIDE": side,
            "RUST_LOG": "info,scylla=off",
        }
        if number == 0:
            # Only the first pod of a side leaves its load balancer while no quorum answers.
            settings["ORDERFREE_READY_NEEDS_QUORUM"] = "true"
        port = FIRST_PORT + len(self.pods)
        return Pod(self.given.program, f"{side}-{number + 1}", port, self.folder, settings)

    # --- The course ---------------------------------------------------------------------------------------------------

    def run(self):
        self.apply_schema(ORDERFREE_REPLICATION=REPLICATION)
        self.made = time.monotonic()
        for pod in self.pods:
            pod.start()
        self.check_placement()
        stop = threading.Event()
        common = (self.phases, stop, self.diary)
        beats = {side: Beat(side, self.sides[side], *common) for side in SIDES}
        readers = [Reader(beats, side, self.sides[side], *common) for side in SIDES]
        level = ("--consistency", "each_quorum", "--settled-consistency", "local_quorum")
        self.start_load("--read-every", "500ms", *level)
        for thread in (*beats.values(), *readers):
            thread.start()
        began, length_s = time.monotonic(), self.given.minutes * 60
        away_s = min(max(AWAY_MIN_S, length_s / 6), AWAY_MAX_S)
        healed_s = min(max(HEALED_MIN_S, length_s / 8), HEALED_MAX_S)
        self.phases.begin("all is well")
        self.hold(max(CALM_MIN_S, healed_s))
        number, longest_s = 0, 0.0
        # Each round takes the other side away.
        while number == 0 or time.monotonic() - began + longest_s < length_s:
            at = time.monotonic()
            side = ("west", "east")[number % 2]
            self.lose(side, away_s, f"{number}-{side}")
            self.hold(healed_s)
            # Once is enough: the row of a key has to become final.
            self.cut(away_s, f"{number}-cut", loses_hints=number == 0)
            self.hold(healed_s)
            number, longest_s = number + 1, max(longest_s, time.monotonic() - at)
        self.reset_keys()
        self.phases.end()
        stop.set()
        for client in (*beats.values(), *readers):
            client.join(60)
            self.diary.expect(not client.is_alive(), f"a client in {client.side} does not end")
        for words in self.phases.standstills():
            self.diary.wrong(words)
        report = self.end_load()
        self.judge(beats)
        for side in SIDES:
            said = self.ask_doctor(self.sides[side][1])
            self.diary.expect(placement(side) in said, f"orderfree doctor does not say {placement(side)}")
        return report

    def check_placement(self):
        for side in SIDES:
            for pod in self.sides[side]:
                _, answer = pod.ask("GET", "/version")
                found = (answer.get("datacenter"), answer.get("replication"))
                self.diary.expect(found == (side, REPLICATION), f"{pod.name} says {found}")
                messages = [event.get("message", "") for event in pod.events(0)]
                begins = [message for message in messages if message.startswith("listening on")]
                is_named = bool(begins) and all(placement(side) in message for message in begins)
                self.diary.expect(is_named, f"{pod.name} begins its log with {begins}")
        # Nothing guesses its data centre.
        settings = os.environ | TIMES | self.pods[0].settings | {"ORDERFREE_LISTEN": "127.0.0.1:0"}
        del settings["ORDERFREE_LOCAL_DC"]
        purge = ["purge", "--repaired-since", "2026-01-01T00:00:00Z"]
        for words in (["serve"], ["doctor"], ["export"], ["import"], ["fold", "--once"], purge):
            shown = f"orderfree {' '.join(words)} without a data centre"
            try:
                done = subprocess.run(
                    [self.given.program, *words],
                    env=settings,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=GUESS_WITHIN_S,
                )
            except subprocess.TimeoutExpired:
                self.diary.wrong(f"{shown} does not end")
                continue
            said = " ".join((done.stdout + done.stderr).split())
            is_refused = done.returncode != 0 and "ORDERFREE_LOCAL_DC to one of east, west" in said
            self.diary.expect(is_refused, f"{shown} ends with {done.returncode}: {said[-300:]}")

    # --- Faults -------------------------------------------------------------------------------------------------------

    def lose(self, side, seconds, tag):
        """Kills all nodes of a side, and starts them again."""
        other = OTHER[side]
        self.phases.begin(f"{side} is away", side)
        logs, at = self.log_lengths(), time.monotonic()
        for node in NODES[side]:
            cluster("kill", node)
        self.diary.say(f"the nodes of {side} are killed")
        self.count_quietly(other, tag)
        lacking = self.wait(60, lambda: all(self.quorum(pod) == 0.0 for pod in self.sides[side]))
        self.diary.expect(lacking, f"pods in {side} do not notice that no quorum answers")
        if lacking:
            self.fact(f"pods in {side} say that no quorum answers", time.monotonic() - at)
            ready = [pod.is_ready() for pod in self.sides[side]]
            self.diary.expect(ready == [False, True], f"pods in {side} are ready: {ready}")
        for pod in self.sides[other]:
            self.diary.expect(self.quorum(pod) == 1.0, f"{pod.name} says that no quorum answers")
            self.diary.expect(pod.is_ready(), f"{pod.name} is not ready while {side} is away")
        self.hold(seconds - (time.monotonic() - at))
        self.expect_folds_wait({pod: side for pod in self.sides[other]}, logs, at)
        self.phases.begin(f"{side} comes back", side)
        at = time.monotonic()
        self.diary.say(f"the nodes of {side} start")
        cluster("start")
        self.fact(f"all nodes of {side} are up again", time.monotonic() - at)
        at = time.monotonic()
        back = self.wait(120, lambda: all(self.quorum(pod) == 1.0 for pod in self.sides[side]))
        self.diary.expect(back, f"pods in {side} do not notice that a quorum answers again")
        self.agree(tag, at, f"{side} was back")
        self.expect_folds_go_on(self.sides[other], logs)

    def cut(self, seconds, tag, loses_hints):
        """Cuts the link, and heals it."""
        self.phases.begin("the link is cut")
        logs, at = self.log_lengths(), time.monotonic()
        os.kill(self.given.relay, signal.SIGUSR1)
        self.diary.say("the link is cut")
        for side in SIDES:
            self.count_quietly(side, tag)
        self.hold(15)
        for side in SIDES:
            wanted = [f"127.0.1.{node}" for node in NODES[OTHER[side]]]
            is_seen = self.wait(60, lambda: self.seen_down(side) == wanted)
            self.diary.expect(is_seen, f"{side} does not see exactly the other side down: {self.seen_down(side)}")
            self.look_across(side, tag)
            began = time.monotonic()
            self.stop(self.sides[side][1])
            self.sides[side][1].start()
            self.fact(f"{self.sides[side][1].name} restarted while the link was cut", time.monotonic() - began)
        early = self.try_reset(tag)
        self.hold(seconds - (time.monotonic() - at))
        # The second pod of each side was restarted, and forgot then since when its folds fail.
        firsts = {self.sides[side][0]: OTHER[side] for side in SIDES}
        self.expect_folds_wait(firsts, logs, at)
        # At the last moment, because the link has to be whole before a fold can take the first row.
        lost = self.lose_hints("east", tag) if loses_hints else None
        self.phases.begin("the link is healed")
        os.kill(self.given.relay, signal.SIGUSR2)
        at = time.monotonic()
        self.diary.say("the link is healed")
        if lost:
            self.expect_lost(lost)
        self.agree(tag, at, "the link was healed")
        cluster("start")
        self.expect_folds_go_on(firsts, logs)
        self.finish_reset(*early)
        if lost:
            self.find_lost(lost)

    def seen_down(self, side):
        """The nodes that a side sees as down."""
        seen = ring(NODES[side][0])
        return sorted(address for address, state in seen.items() if state.startswith("D"))

    def look_across(self, side, tag):
        """What a side says of a key that only the other one counted."""
        pod, key = self.sides[side][0], next(iter(self.of(OTHER[side], tag, both=False)))
        status, answer = pod.ask("GET", f"/v1/counter/{key}?consistency=local_quorum")
        detail = answer.get("detail", "") if isinstance(answer, dict) else ""
        is_said = status == 404 and f"data centre {side}" in detail
        self.diary.expect(is_said, f"{pod.name} says {status} {answer} of a key of {OTHER[side]}")
        status, _ = pod.read(key, "each_quorum")
        self.diary.expect(status == 503, f"{pod.name} reads at each_quorum with {status}")

    # --- What the logs say of folds -----------------------------------------------------------------------------------

    def log_lengths(self):
        return {pod: pod.log_length() for pod in self.pods}

    def said_of_folds(self, pod, since):
        """The last line of a pod's log that says whether folds wait."""
        events = [
            event
            for event in pod.events(since)
            if event.get("message", "").startswith(("folds wait", "folds go on"))
        ]
        return events[-1] if events else {}

    def expect_folds_wait(self, away, logs, since):
        """Waits until each of these pods has logged that folds wait for the nodes of the side that it does not see."""

        def is_said(pod):
            said = self.said_of_folds(pod, logs[pod])
            nodes = [f"127.0.1.{node} in {away[pod]}" for node in NODES[away[pod]]]
            waits = said.get("message", "").startswith("folds wait")
            return waits and all(node in said.get("silent", "") for node in nodes)

        left_s = WAITING_SAID_WITHIN_S - (time.monotonic() - since)
        if self.wait(left_s, lambda: all(map(is_said, away))):
            names = " and ".join(pod.name for pod in away)
            self.fact(f"the logs of {names} said that folds wait, and for which nodes, within", time.monotonic() - since)
            return
        for pod, side in away.items():
            said = self.said_of_folds(pod, logs[pod]) or "nothing"
            self.diary.expect(is_said(pod), f"the log of {pod.name} says {said}, not that folds wait for {side}")

    def expect_folds_go_on(self, pods, logs):
        def is_said(pod):
            return self.said_of_folds(pod, logs[pod]).get("message") == "folds go on"

        self.wait(GOING_ON_SAID_WITHIN_S, lambda: all(map(is_said, pods)))
        for pod in pods:
            self.diary.expect(is_said(pod), f"the log of {pod.name} does not say that folds go on")

    # --- Lost hints ---------------------------------------------------------------------------------------------------

    def lose_hints(self, side, tag):
        """Counts two keys on a side whose nodes keep no hints for the other one, which they see as down. Returns what was
        counted, or None if that failed."""
        self.on_nodes(side, "disablehandoff")
        lost = Lost(side, f"swept/{tag}", f"repaired/{tag}", secrets.randbits(40) + 1, time.monotonic())
        # This window ends after a day, so no fold takes the row in this run, and only a repair can bring it.
        headers = {"Idempotency_Key": uuid7(), "Idempotency_Window": "long"}
        pod = self.sides[side][0]
        outcomes = [pod.add(lost.swept, lost.weight), pod.add(lost.repaired, lost.weight, **headers)]
        self.on_nodes(side, "enablehandoff")
        is_counted = outcomes == ["acked", "acked"]
        self.diary.expect(is_counted, f"updates of keys without hints are {outcomes}")
        return lost if is_counted else None

    def on_nodes(self, side, *words):
        """Runs nodetool on all nodes of a side at once, because each call starts a Java."""
        with concurrent.futures.ThreadPoolExecutor(len(NODES[side])) as pool:
            list(pool.map(lambda node: cluster("nodetool", node, *words), NODES[side]))

    def expect_lost(self, lost):
        """The other side must not have the keys, although a read of both sides finds them."""
        other, keys = OTHER[lost.side], (lost.swept, lost.repaired)
        pods = self.sides[other]

        def are_found():
            return all(self.value_of(pod.read(key, "each_quorum")) == lost.weight for pod in pods for key in keys)

        is_found = self.wait(AGREE_WITHIN_S, are_found)
        self.diary.expect(is_found, f"pods in {other} do not find {keys} at each_quorum")
        seen = {key: [self.plainly(pod, key) for pod in pods] for key in keys}
        took_s = time.monotonic() - lost.at
        nothing = ["status 404"] * len(pods)
        self.diary.expect(seen[lost.repaired] == nothing, f"{lost.repaired} is {seen[lost.repaired]} on {other}")
        if took_s < FINAL_AFTER_S:
            self.diary.expect(seen[lost.swept] == nothing, f"{lost.swept} is {seen[lost.swept]} on {other}")
            self.fact(f"two keys whose hints were lost are not in {other}, and found at each_quorum, after", took_s)
        else:
            # On a slow machine. The other key has shown that hints were lost.
            self.fact(f"too late to see {lost.swept} before a fold: {seen[lost.swept]} after", took_s)

    def find_lost(self, lost):
        """A fold must bring one key to the other side, and a repair the other key."""
        other = OTHER[lost.side]
        pods = self.sides[other]
        self.phases.begin("lost hints are made good")

        def is_there(key):
            # Only plain reads: nothing but the sweep may find the row that was lost.
            return all(self.plainly(pod, key) == lost.weight for pod in pods)

        left_s = SWEPT_WITHIN_S - (time.monotonic() - lost.at)
        is_swept = self.wait(left_s, lambda: is_there(lost.swept))
        self.diary.expect(is_swept, f"no fold has brought {lost.swept} to {other}")
        if is_swept:
            self.fact(f"a fold had brought a key whose hints were lost to {other} after", time.monotonic() - lost.at)
        seen = [self.plainly(pod, lost.repaired) for pod in pods]
        self.diary.expect(seen == ["status 404"] * len(pods), f"{lost.repaired} is {seen} on {other} before the repair")
        at = time.monotonic()
        # Each node is a replica of every key, so the repair of one is enough.
        self.repair(NODES[other][:1])
        is_repaired = self.wait(AGREE_WITHIN_S, lambda: is_there(lost.repaired))
        self.diary.expect(is_repaired, f"a repair has not brought {lost.repaired} to {other}")
        if is_repaired:
            self.fact("a repair had brought another one within", time.monotonic() - at)
        self.quiet[lost.swept] = (lost.weight, "acked")
        self.unfolded[lost.repaired] = lost.weight

    def plainly(self, pod, key):
        """The value that a pod reads by default, or the status of an answer without one."""
        return self.value_of(pod.ask("GET", f"/v1/counter/{key}?numbers=string"))

    def value_of(self, answered):
        status, answer = answered
        return int(answer["value"]) if status == 200 else f"status {status}"

    # --- Quiet keys ---------------------------------------------------------------------------------------------------

    def count_quietly(self, side, tag):
        """Counts keys that are then left alone. Only a side that is whole does this, so each is acked."""
        counted = 0
        for number in range(QUIET_KEYS):
            both = number % 2 == 1
            key = f"quiet-{number % QUIET_GROUPS}/{tag}-{side}-{'both' if both else 'one'}-{number}"
            weight = secrets.randbits(40) + 1
            headers = {"Idempotency_Key": uuid7(), "Idempotency_Window": "minute"} if both else {}
            pod = self.sides[side][number // 2 % PODS_PER_SIDE]
            outcome = pod.add(key, weight, **headers)
            if outcome == "refused":
                continue
            self.quiet[key] = (weight, outcome)
            counted += outcome == "acked"
            # The same update, sent again to the other side. That one can be away.
            if both:
                self.sides[OTHER[side]][0].add(key, weight, within_s=AWAY_ANSWER_S, **headers)
        self.diary.expect(counted > 0, f"{side} acked no quiet key")

    def of(self, side, tag, both=None):
        """The acked quiet keys of a side and a time."""
        parts = {None: ("both", "one"), True: ("both",), False: ("one",)}[both]
        marks = [f"/{tag}-{side}-{part}-" for part in parts]
        return {
            key: weight
            for key, (weight, outcome) in self.quiet.items()
            if outcome == "acked" and any(mark in key for mark in marks)
        }

    def agree(self, tag, since, after):
        """Waits until both sides read the quiet keys of this time as they were counted."""
        open_reads = {
            (side, key): weight for side in SIDES for at in SIDES for key, weight in self.of(at, tag).items()
        }
        deadline = since + AGREE_WITHIN_S
        while open_reads and time.monotonic() < deadline:
            for (side, key), weight in list(open_reads.items()):
                status, answer = self.sides[side][1].read(key, "local_quorum")
                if status == 200 and int(answer["value"]) == weight:
                    del open_reads[side, key]
                elif status == 200:
                    value = int(answer["value"])
                    self.diary.expect(value == 0, f"{key} is {value} on {side}, not {weight}")
                    break
            self.hold(0.5)
        names = sorted(key for _, key in open_reads)
        self.diary.expect(not names, f"both sides do not agree on {len(names)} keys after {after}: {names[:3]}")
        if not names:
            self.fact(f"both sides agree after {after}", time.monotonic() - since)

    # --- Resets -------------------------------------------------------------------------------------------------------

    def is_old_enough(self):
        return time.monotonic() - self.made > RESETS_AGE_S

    def reset(self, pod, key, id):
        """Orders a reset. Returns the outcome, what it cleared, and the answer in short."""
        status, answer = pod.ask(
            "POST",
            f"/v1/counter/{key}/reset?numbers=string",
            within_s=60,
            Idempotency_Key=id,
            Prefer="wait=30",
        )
        if not isinstance(answer, dict):
            return "unknown", None, f"{status}"
        outcome = "refused" if status == 0 else answer.get("outcome", "unknown")
        cleared = (answer.get("cleared") or {}).get("value")
        problem = str(answer.get("type", "")).rsplit("/", 1)[-1]
        return outcome, None if cleared is None else int(cleared), f"{status} {problem}".strip()

    def try_reset(self, tag):
        """Orders a reset while the link is cut. It needs a quorum of both sides, so it can't succeed now."""
        while not self.is_old_enough():
            self.hold(1)
        key, weight = next(iter(self.of("east", tag, both=False).items()))
        id = uuid7()
        outcome, _, shown = self.reset(self.sides["east"][1], key, id)
        self.diary.say(f"a reset while the link is cut: {outcome}, {shown}")
        if outcome != "refused":
            # It can still take effect once the link is healed.
            self.quiet[key] = (weight, "unknown")
        self.diary.expect(outcome != "acked", f"a reset of {key} is acked while the link is cut")
        return key, weight, id

    def finish_reset(self, key, weight, id):
        """Sends a reset again until its outcome is known. If it stays unknown, the key is 0 or has all it had."""
        cleared = self.insist(self.sides["west"][1], key, id)
        if cleared is None:
            self.quiet[key] = (weight, "unknown")
        else:
            self.diary.expect(cleared == weight, f"a reset of {key} cleared {cleared}, not {weight}")
            self.quiet[key] = (0, "acked")

    def insist(self, pod, key, id):
        """Sends a reset until it is acked. Returns what it cleared, or None if that stays unknown."""
        began, seen = time.monotonic(), []
        while time.monotonic() - began < RESET_WITHIN_S:
            outcome, cleared, shown = self.reset(pod, key, id)
            seen.append(shown)
            if outcome == "acked":
                return cleared
            self.hold(1)
        self.diary.say(f"a reset of {key} has no answer: {collections.Counter(seen)}")
        return None

    def reset_keys(self):
        """Resets quiet keys from both sides, and counts them again."""
        self.phases.begin("resets")
        while not self.is_old_enough():
            self.hold(1)
        acked = [key for key, (weight, outcome) in self.quiet.items() if outcome == "acked" and weight]
        chosen = random.sample(acked, RESET_KEYS)
        with concurrent.futures.ThreadPoolExecutor(RESET_KEYS) as pool:
            took = list(pool.map(self.reset_key, range(RESET_KEYS), chosen))
        self.fact(f"{len(took)} resets took {millis(min(took))} to {millis(max(took))}")

    def reset_key(self, number, key):
        """Resets a key from one side. Both sides must then read 0. Half of the keys are counted again. Returns the time."""
        (weight, _), began = self.quiet[key], time.monotonic()
        cleared = self.insist(self.sides[SIDES[number % 2]][0], key, uuid7())
        took_s = time.monotonic() - began
        self.diary.expect(cleared == weight, f"a reset of {key} cleared {cleared}, not {weight}")
        if cleared is None:
            self.quiet[key] = (weight, "unknown")
            return took_s
        for side in SIDES:
            status, answer = self.sides[side][1].read(key, "local_quorum")
            value = answer["value"] if status == 200 else f"status {status}"
            self.diary.expect(value == "0", f"{key} is {value} on {side} after its reset")
        self.quiet[key] = (0, "acked")
        if number % 4 < 2:
            weight = secrets.randbits(40) + 1
            self.quiet[key] = (weight, self.sides[SIDES[number % 2]][1].add(key, weight))
        return took_s

    # --- The end ------------------------------------------------------------------------------------------------------

    def judge(self, beats):
        # The values that each key may have.
        keys = {}
        for key, (weight, outcome) in self.quiet.items():
            keys[key] = {"acked": {weight}, "refused": {0}, "unknown": {0, weight}}[outcome]
        for beat in beats.values():
            keys[beat.key] = set(range(len(beat.acked), len(beat.acked) + beat.unknown + 1))
        pods, right = self.pods, 0
        for number, key in enumerate(keys):
            deadline = time.monotonic() + FOLD_WITHIN_S
            is_folded = False
            # Another fold of the key can run, and clocks can be late.
            while not is_folded and time.monotonic() < deadline:
                status, answer = pods[number % len(pods)].ask("POST", f"/v1/counter/{key}/fold", within_s=60)
                is_folded = status == 200 and answer["kept"] == 0
                if not is_folded:
                    self.hold(1)
            self.diary.expect(is_folded, f"{key} is not folded: {status} {answer}")
        keys |= {key: {weight} for key, weight in self.unfolded.items()}
        for key, allowed in keys.items():
            values = {}
            for level in ("each_quorum", "local_quorum"):
                for pod in pods:
                    status, answer = pod.read(key, level)
                    values[pod.name, level] = int(answer["value"]) if status == 200 else f"status {status}"
            found = set(values.values())
            is_right = len(found) == 1 and found <= allowed
            self.diary.expect(is_right, f"{key} has to be {sorted(allowed)[:5]} everywhere: {values}")
            right += is_right
        self.fact(
            f"{right} of {len(keys)} quiet keys and beats right at `each_quorum` and at `local_quorum` of each side"
        )
        for side in SIDES:
            folded = sum(row.grown["folds"] for row in self.phases.rows if row.side == side)
            self.diary.expect(folded > 0, f"pods in {side} folded nothing")

    def quorum(self, pod):
        """1 if a quorum of the pod's data centre answers, 0 if none does, None if the pod says nothing."""
        return pod.metrics().get("orderfree_store_quorum")

    def fact(self, words, seconds=None):
        self.known.append(words if seconds is None else f"{words}: {seconds:.1f} s")
        self.diary.say(self.known[-1])

    def end(self):
        self.phases.end()
        super().end()

    def facts(self):
        return self.known

    def course(self):
        return [
            "## Phases",
            "",
            "Updates and folds are those of the side's pods, for all clients. Latencies are those of its beats. Reads are at "
            "`local_quorum`, of the beats of both sides: a stale one misses some of the other side's that were acked before "
            "it began, the oldest of them so long ago.",
            "",
            self.phases.table(),
            "",
        ]


follow(Regions)
