"""Clients that count through the current pods, and remember what they were told.

Each has one connection that is kept alive and one update in flight: a random weight of 60 bits, so that
one lost and one doubled update can't cancel out. An update is sent again only if it is certain that it
was not counted: the connection was refused, or the answer is `refused`. A connection that breaks after
the update was sent leaves it unknown.
"""

import http.client
import json
import random
import select
import threading
import time
from collections import Counter

TIMEOUT_S = 15
PAUSE_S = 0.05
THINK_S = 0.02


class Ledger:
    """What the clients were told."""

    def __init__(self):
        self.lock = threading.Lock()
        self.acked = Counter()
        self.unknown = {}
        self.counts = Counter()
        self.by_pod = Counter()
        self.latencies_s = []
        self.last_ack = None
        self.longest_gap_s = 0.0
        self.examples = {}

    def ack(self, key, weight, address, took_s):
        with self.lock:
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - (self.last_ack or now))
            self.last_ack = now
            self.acked[key] += weight
            self.counts["acked"] += 1
            self.by_pod[address] += 1
            self.latencies_s.append(took_s)

    def doubt(self, key, weight, why):
        with self.lock:
            self.unknown.setdefault(key, []).append(weight)
        self.note("unknown", why)

    def note(self, what, why):
        with self.lock:
            self.counts[what] += 1
            self.examples.setdefault(what, why)


class Client(threading.Thread):
    """A client that follows the endpoints, like a proxy, leaves a pod at its next request after the pod is withdrawn. One
    that does not, as behind the address of a Service, stays until the pod hangs up."""

    def __init__(self, number, keys, endpoints, ledger, stop, token):
        super().__init__(daemon=True)
        self.follows = number % 2 == 0
        self.random = random.Random(number)
        self.keys, self.endpoints, self.ledger, self.stopping = keys, endpoints, ledger, stop
        self.headers = {"Content-Type": "application/json"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"
        self.connection = self.address = None

    def run(self):
        while not self.stopping.is_set():
            # Half of all updates go to one key.
            key = self.keys[0] if self.random.random() < 0.5 else self.random.choice(self.keys)
            self.add(key, self.random.getrandbits(60))
            time.sleep(self.random.random() * THINK_S)
        self.hang_up()

    def add(self, key, weight):
        """Sends one update until its outcome is known, or until it is unknown for good."""
        body = json.dumps({"op": "add", "by": weight}).encode()
        while True:
            if not self.connect():
                time.sleep(PAUSE_S)
                continue
            began = time.monotonic()
            try:
                self.connection.request("POST", f"/v1/counter/{key}", body, self.headers)
                answer = self.connection.getresponse()
                text = answer.read().decode()
            except (OSError, http.client.HTTPException) as error:
                self.hang_up()
                self.ledger.doubt(key, weight, f"connection broken: {error!r}")
                return
            if answer.will_close:
                self.hang_up()
                self.ledger.note("connections ended by an answer", "Connection: close")
            outcome = outcome_of(text)
            if answer.status == 200 and outcome == "acked":
                self.ledger.ack(key, weight, self.address, time.monotonic() - began)
                return
            if outcome != "refused":
                self.ledger.doubt(key, weight, f"{answer.status} {text[:300]}")
                return
            self.ledger.note("refused", f"{answer.status} {text[:300]}")
            if answer.status != 503:
                self.ledger.note("refused for good", f"{answer.status} {text[:300]}")
                return
            time.sleep(min(float(answer.headers.get("Retry-After", PAUSE_S)), 1.0))

    def connect(self):
        """Whether there is a connection, as far as the client can tell."""
        if self.connection and self.follows and self.address not in self.endpoints.addresses:
            self.hang_up()
        # Without a request in flight, readable data means the end of the connection. An update sent at that moment
        # would be unknown, so a pod must announce the end with an earlier answer.
        if self.connection and select.select([self.connection.sock], [], [], 0)[0]:
            self.ledger.note("connections ended in silence", f"{self.address}")
            self.hang_up()
        if self.connection:
            return True
        addresses = self.endpoints.addresses
        if not addresses:
            self.ledger.note("nowhere to go", "no endpoints")
            return False
        self.address = self.random.choice(addresses)
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            self.ledger.note("refused connections", f"{self.address}: {error!r}")
            return False
        self.connection = connection
        return True

    def hang_up(self):
        if self.connection:
            self.connection.close()
        self.connection = None


def outcome_of(text):
    try:
        return json.loads(text).get("outcome")
    except (ValueError, AttributeError):
        return None


def value_of(address, key, token):
    """A key's value from one pod; 0 if it was never counted."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for attempt in range(20):
        connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
        path = f"/v1/counter/{key}?numbers=string&consistency=quorum&default=0"
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status == 200:
            return int(json.loads(text)["value"])
        time.sleep(0.5)
    raise ValueError(f"{key} can't be read: {answer.status} {text[:300]}")


def judge(key, value, ledger):
    """A sentence if a value is not the acked sum plus that of some unknown updates."""
    unknown, acked = ledger.unknown.get(key, []), ledger.acked[key]
    if not acked <= value <= acked + sum(unknown):
        return f"{key} is {value}, not between {acked} and {acked + sum(unknown)}"
    # With more unknown updates there are too many sums to try.
    if len(unknown) <= 16:
        sums = {0}
        for weight in unknown:
            sums |= {weight + other for other in sums}
        if value - acked not in sums:
            return f"{key} is {value}: {acked} and no sum of its unknown updates"
    return None
