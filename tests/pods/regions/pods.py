"""Pods, nodes, load and what the recipes of this folder have in common."""

import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import re
import secrets
import signal
import subprocess
import sys
import time
import traceback
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[3]
CLUSTER = ROOT / "tests/cassandra/cluster"

# Lifetimes so short that folds happen all the time. The limit of the clock offset, 4 s, and the budget of a request, 2 s,
# follow from them.
TIMES = {
    "ORDERFREE_LIFETIME": "60s",
    "ORDERFREE_DRAIN_MARGIN": "10s",
    "ORDERFREE_CUTOFF": "30s",
    "ORDERFREE_UNREADY_GRACE": "2s",
}
# All rows are final 95 s after the last update, and ids of a minute two minutes and a cutoff after their time.
SETTLE_S = 155
# The most errors that are printed.
WRONGS_MAX = 40
# Time limit of a request. A pod refuses or gives up long before.
REQUEST_WITHIN_S = 15
# Time limit of a command, such as a start of six nodes on a slow machine.
COMMAND_WITHIN_S = 1800
# How long a client sends an update again that is not acked.
INSIST_S = 60
# A table of resets is used when every pod can have found it.
RESETS_AGE_S = 310


class Broken(Exception):
    """An error after which the run can't continue."""


class Diary:
    """What happened when, in the terminal and in a file, and what was wrong."""

    def __init__(self, file):
        self.began, self.file, self.wrongs = time.monotonic(), file, []

    def say(self, words):
        line = f"{time.monotonic() - self.began:6.0f} s  {words}"
        print(line, flush=True)
        with self.file.open("a") as out:
            print(line, file=out)

    def wrong(self, words):
        """Records something that must not happen. The run goes on, and fails at the end."""
        if words not in self.wrongs and len(self.wrongs) < WRONGS_MAX:
            self.wrongs.append(words)
            self.say(f"WRONG: {words}")

    def expect(self, is_so, words):
        if not is_so:
            self.wrong(words)


class Pod:
    """A process of `orderfree serve`."""

    def __init__(self, program, name, port, folder, settings):
        self.name, self.port = name, port
        self.url = f"http://127.0.0.1:{port}"
        self.command = [program, "serve"]
        self.settings = settings | {"ORDERFREE_LISTEN": f"127.0.0.1:{port}"}
        self.log = folder / f"{name}.log"
        self.process = None
        # The counters of earlier processes.
        self.past = collections.Counter()

    def start(self, **more):
        """Starts the process, and waits until it is ready."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command,
                env=os.environ | TIMES | self.settings | more,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 180
        while not self.is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise Broken(f"{self.name} does not get ready; its log is {self.log}")
            time.sleep(0.2)

    def check(self):
        if self.process.poll() is not None:
            raise Broken(f"{self.name} ended with {self.process.returncode}; its log is {self.log}")

    def stop(self):
        """Ends the process as an orchestrator does. Returns a sentence if that does not go well."""
        if self.process is None or self.process.poll() is not None:
            return None
        self.past.update(self.counters())
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(45)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"{self.name} did not end after SIGTERM"
        return None if code == 0 else f"{self.name} ended with {code} after SIGTERM"

    def ask(self, method, path, body=None, within_s=REQUEST_WITHIN_S, **headers):
        """The status and the JSON of an answer. The status is 0 if the connection was refused, and -1 if it broke."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            headers["Content-Type"], body = "application/json", json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=within_s)
        try:
            connection.connect()
        except OSError:
            return 0, {}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return -1, {}
        finally:
            connection.close()
        try:
            answered = json.loads(text)
        except ValueError:
            answered = text
        return answer.status, answered

    def is_ready(self):
        return self.ask("GET", "/readyz", within_s=5)[0] == 200

    def log_length(self):
        return self.log.stat().st_size if self.log.exists() else 0

    def events(self, since):
        """The lines of the log behind this length that are whole."""
        with self.log.open("rb") as log:
            log.seek(since)
            lines = log.read().splitlines()
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                # A panic, or a line that is being written.
                continue

    def metrics(self):
        """The metrics, by name with labels. A pod that does not answer has none."""
        status, text = self.ask("GET", "/metrics", within_s=5)
        if status != 200:
            return {}
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def counters(self):
        return {name: value for name, value in self.metrics().items() if "_total" in name}

    def totals(self):
        """The counters, with those of earlier processes."""
        return self.past + collections.Counter(self.counters())

    def add(self, key, weight, **headers):
        """Adds once. The outcome is `acked`, `refused` or `unknown`."""
        status, answer = self.ask("POST", f"/v1/counter/{key}", {"op": "add", "by": weight}, **headers)
        if status == 0:
            return "refused"
        outcome = answer.get("outcome") if isinstance(answer, dict) else None
        return outcome if outcome in ("acked", "refused") else "unknown"

    def insist(self, key, weight):
        """Adds under one id until the update is acked. Returns the last outcome, and the headers with the id."""
        headers = {"Idempotency_Key": uuid7(), "Idempotency_Window": "minute"}
        deadline = time.monotonic() + INSIST_S
        while (outcome := self.add(key, weight, **headers)) != "acked" and time.monotonic() < deadline:
            time.sleep(0.5)
        return outcome, headers

    def read(self, key, level, **more):
        """The answer to a read of a counter, which is 0 if it is absent."""
        query = "&".join(f"{name}={value}" for name, value in {"numbers": "string", **more}.items())
        return self.ask("GET", f"/v1/counter/{key}?consistency={level}&default=0&{query}")


def uuid7():
    """A new id, with the time inside."""
    random = secrets.randbits(74)
    value = int(time.time() * 1000) << 80 | 7 << 76 | (random >> 62) << 64 | 2 << 62
    return str(uuid.UUID(int=value | random & (1 << 62) - 1))


def run(*words, **settings):
    """Runs a command, and returns its output."""
    words = [str(word) for word in words]
    shown = f"`{' '.join(words[-5:])}`"
    # The session has all of its processes, but for nodes, which have sessions of their own.
    done = subprocess.Popen(
        words,
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = done.communicate(timeout=COMMAND_WITHIN_S)
    except BaseException as why:
        os.killpg(done.pid, signal.SIGKILL)
        done.wait()
        if isinstance(why, subprocess.TimeoutExpired):
            raise Broken(f"{shown} takes longer than {COMMAND_WITHIN_S} s") from None
        raise
    if done.returncode:
        raise Broken(f"{shown} failed: {' '.join((error + out).split())[-600:]}")
    return out


def cluster(*words, **settings):
    """Runs tests/cassandra/cluster."""
    return run(CLUSTER, *words, **settings)


def ring(node, **settings):
    """The nodes as one of them sees them: the letters of their state by address."""
    text = cluster("nodetool", node, "status", **settings)
    found = re.findall(r"^([UD?][NLJM]) +(\S+) ", text, re.MULTILINE)
    return {address: state for state, address in found}


class Load:
    """`orderfree load` on running pods, until it is told to end."""

    def __init__(self, program, urls, folder, *flags):
        self.text, self.log = folder / "load.json", folder / "load.log"
        words = [program, "load", *(word for url in urls for word in ("--url", url)), *map(str, flags)]
        # Longer than any run: a signal ends it.
        words += ["--duration", "24h", "--fold-check", "--settle", f"{SETTLE_S}s"]
        words += ["--request-timeout", f"{REQUEST_WITHIN_S}s", "--ready-within", "180s", "-o", "json"]
        with self.text.open("w") as out, self.log.open("w") as log:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
            )

    def check(self):
        """Fails if the load has ended by itself: it has seen a wrong value then, and says so in its report."""
        if self.process.poll() is not None:
            said = self.log.read_text().splitlines()[-5:]
            raise Broken(f"the load ended: {self.report().get('failures') or said}")

    def end(self):
        """Ends the load, and returns its report after all keys were checked."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        report = self.report()
        if not report:
            raise Broken(f"the load left no report; its log is {self.log}")
        return report

    def report(self):
        try:
            return json.loads(self.text.read_text())
        except ValueError:
            return {}

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()


def millis(seconds):
    return f"{seconds * 1000:,.0f} ms" if seconds < 10 else f"{seconds:,.0f} s"


def quantile(values, share):
    """A quantile of a list; None if it is empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None


def load_rows(report):
    """The figures of `orderfree load`, as rows of a table."""
    ids, latency = report["ids"] or {}, report["latency"]
    yield "updates with an outcome", f"{report['attempted']:,} in {report['seconds']:,.0f} s"
    yield "acked", f"{report['acked']:,}"
    yield "refused", f"{report['refused']:,}"
    yield "unknown", f"{report['unknown']:,}"
    if ids:
        yield "ids", f"{ids['ids']:,}, sent {ids['sent']:,} times"
        yield "repeats until an ack", f"{ids['repeats']:,}"
        yield "repeats after an ack", f"{ids['repeats_after_ack']:,}"
        yield "ids whose outcome stayed unknown, conflicts", f"{ids['unknown']:,}, {ids['conflicts']:,}"
    times = [millis(latency[name] / 1e6) for name in ("p50_us", "p99_us", "p999_us", "max_us")]
    yield "latency of acked updates: p50, p99, p99.9, longest", ", ".join(times)
    yield "reads during the load, and failed ones", f"{report['reads']:,}, {report['reads_failed']:,}"
    for one in report["passes"]:
        keys = one["right"] + one["undecided"] + one["in_doubt"] + one["wrong"] + one["unread"]
        yield (
            f"keys right, {one['name']}",
            f"{one['right']:,} of {keys:,}; {one['wrong']} wrong, {one['unread']} unread, "
            f"{one['undecided']} undecided",
        )


def table(heads, rows):
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


COUNTED = {
    "acked": 'orderfree_updates_total{outcome="acked"}',
    "refused": 'orderfree_updates_total{outcome="refused"}',
    "unknown": 'orderfree_updates_total{outcome="unknown"}',
    "folds": 'orderfree_folds_total{end="folded"}',
    "zombies": "orderfree_zombies_total",
}
TABLES = ("resets", "shards")


class Recipe:
    """A course of steps under load, and its report. `pods` are those that run all the time, and `others` those that run
    just now."""

    title = None

    def __init__(self, given):
        self.given, self.folder = given, given.folder
        self.diary = Diary(self.folder / "diary.txt")
        self.keyspace = f"{type(self).__name__.lower()}_{secrets.token_hex(8)}"
        self.pods, self.others, self.load, self.rows = [], [], None, []

    def apply_schema(self, **settings):
        run(self.given.program, "schema", "apply", **TIMES, **self.pods[0].settings, **settings)

    def start_load(self, *flags):
        urls = [pod.url for pod in self.pods]
        usual = ["--workload", "mixed", "--keys", 300, "--rate", self.given.rate, "--connections", 32]
        usual += ["--ids", "none,minute"]
        self.load = Load(self.given.program, urls, self.folder, *usual, *flags)

    def end_load(self):
        """Returns the report of the load, after all keys were checked."""
        self.diary.say("the load ends; every key is read, folded and read again")
        report = self.load.end()
        for words in report["failures"]:
            self.diary.wrong(f"the load: {words}")
        return report

    def hold(self, seconds):
        """Lets the load go on."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for process in (self.load, *self.pods, *self.others):
                process.check()
            time.sleep(0.5)

    def wait(self, seconds, is_so):
        """Waits until something is so. Returns whether it is."""
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                return False
            self.hold(0.5)
        return True

    @contextlib.contextmanager
    def step(self, what):
        """Counts what the pods do meanwhile."""
        self.diary.say(what)
        before, began = self.counts(), time.monotonic()
        yield
        after = self.counts()
        grown = [f"{after[name] - before[name]:,.0f}" for name in COUNTED]
        self.rows.append([what, f"{time.monotonic() - began:.0f} s", *grown])

    def counts(self):
        totals = [pod.totals() for pod in self.pods]
        return {name: sum(one[metric] for one in totals) for name, metric in COUNTED.items()}

    def roll(self, fold):
        """Restarts the pods, one after the other, with folds on or off."""
        self.diary.say(f"folds are switched {fold}")
        for pod in (*self.pods, *self.others):
            self.stop(pod)
            pod.start(ORDERFREE_FOLD=fold)

    @contextlib.contextmanager
    def folds_off(self):
        self.roll("off")
        yield
        self.roll("on")

    def repair(self, nodes):
        for node in nodes:
            for name in TABLES:
                cluster("nodetool", node, "repair", "--full", self.keyspace, name)

    def expect_ring(self, count):
        seen = ring(1)
        self.diary.expect(list(seen.values()) == ["UN"] * count, f"not {count} nodes are up: {seen}")

    def ask_doctor(self, pod):
        words, settings = [self.given.program, "doctor"], os.environ | TIMES | pod.settings
        done = subprocess.run(words, env=settings, capture_output=True, text=True)
        self.diary.say(f"orderfree doctor, as {pod.name}:\n{done.stdout}{done.stderr}".rstrip())
        self.diary.expect(done.returncode == 0, f"orderfree doctor ends with {done.returncode}")
        return done.stdout

    def stop(self, pod):
        words = pod.stop()
        if words:
            self.diary.wrong(words)

    def end(self):
        """Ends all processes."""
        if self.load:
            self.load.kill()
        for pod in (*self.pods, *self.others):
            self.stop(pod)

    def facts(self):
        """More lines of the report."""
        return []

    def course(self):
        """The steps under load, as Markdown."""
        return ["## Steps", "", table(["step", "took", *COUNTED], self.rows), ""]

    def report(self, load):
        passed = not self.diary.wrongs and load is not None
        words = ", ".join([f"`{self.given.told_as}`", *filter(None, [self.given.revision])])
        lines = [f"# {self.title}", "", words, ""]
        lines += [f"Result: **{'passed' if passed else 'FAILED'}**", ""]
        listed = [f"- **Wrong**: {words}" for words in self.diary.wrongs]
        listed += [f"- {words}" for words in self.facts()]
        lines += [*listed, ""] if listed else []
        if load is not None:
            lines += ["## The load", "", table(["", ""], load_rows(load)), ""]
        return "\n".join([*lines, *self.course()])


def interrupt(*_):
    raise KeyboardInterrupt


def follow(recipe):
    """Runs a recipe, and ends the process: with code 0 if nothing was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--relay", type=int, help="process id of relay.py")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--fold", choices=["all", "each_quorum", "quorum"], required=True)
    parser.add_argument("--told-as", required=True)
    parser.add_argument("--revision", default="", help="revision of the program; empty if it is not known")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    at_work, load = recipe(given), None
    try:
        load = at_work.run()
    except (Broken, KeyboardInterrupt) as error:
        at_work.diary.wrong(str(error) or "interrupted")
    except Exception:
        at_work.diary.wrong(traceback.format_exc(limit=-3))
    finally:
        at_work.end()
    text = at_work.report(load)
    (given.folder / "report.md").write_text(text)
    print(text)
    sys.exit(1 if at_work.diary.wrongs else 0)
