"""Servers of the real binary, and pages of a real browser."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.request

import pytest
from playwright.sync_api import expect, sync_playwright

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]
# For what a busy machine may do late. No test measures it.
PATIENCE_S = 30
# Short times, so that shards are final within a minute.
TIMES = ["--lifetime", "20s", "--drain-margin", "10s", "--cutoff", "30s", "--unready-grace", "0s"]


class Server:
    """A process of the binary that listens."""

    def __init__(self, folder, *arguments, port=0):
        self.log = folder / "log"
        command = [os.environ["PROGRAM"], *arguments, "--listen", f"127.0.0.1:{port}"]
        environment = {"PATH": os.environ["PATH"], "RUST_LOG": "info"}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", self.log.read_text())):
            assert self.process.poll() is None, f"the server ended: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"the server does not listen: {self.log.read_text()}"
            time.sleep(0.05)
        self.origin, self.port = found.group(), int(found.group(1))

    def ask(self, method, path, body=None, token=None):
        """The JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.origin + path, data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)

    def add(self, key, by, **options):
        self.ask("POST", f"/v1/counter/{key}", {"op": "add", "by": by}, **options)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)
        self.process.kill()


@pytest.fixture
def start(tmp_path):
    """Starts servers that end with the test."""
    servers = []

    def start(*arguments, port=0):
        servers.append(Server(tmp_path, *arguments, port=port))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server with keys of every kind, which others update all the time, and one key with shards of two pods."""
    folder = tmp_path_factory.mktemp("server")
    serve = ["serve", "--data", str(folder / "data.redb"), "--fold", "manual", *TIMES]
    first = Server(folder, *serve)
    first.add("two/pods", 5)
    first.end()
    server = Server(folder, *serve)
    server.add("two/pods", 7)
    for kind in server.ask("GET", "/v1/kinds")["kinds"]:
        for _ in range(3):
            server.ask("POST", f"/v1/{kind['kind']}/site/home", kind["example_op"])
    for value in range(1, 200):
        op = {"op": "record", "value": value * value % 977 / 10}
        server.ask("POST", "/v1/histogram/site/home", op)
    for item in range(12):
        server.ask("POST", "/v1/topk/site/home", {"op": "add", "item": f"page {item}", "by": 1 + item * item})
        server.ask("POST", "/v1/gset/site/home", {"op": "add", "item": f"country {item}"})
    for group, count in [("few", 100), ("many", 10_000)]:
        for first in range(0, count, 1000):
            names = [f"key-{at:05}" for at in range(first, min(count, first + 1000))]
            one = {"kind": "counter", "group": group, "op": {"op": "add", "by": 1}}
            updates = [{**one, "name": name} for name in names]
            results = server.ask("POST", "/v1/batch", {"updates": updates})["results"]
            assert {result["outcome"] for result in results} == {"acked"}
    ends = threading.Event()

    def update():
        turn = 0
        while not ends.wait(0.05):
            turn += 1
            with contextlib.suppress(OSError):
                server.add(f"busy/{['search', 'cart', 'home'][turn % 7 % 3]}", 1)

    clients = threading.Thread(target=update)
    clients.start()
    yield server
    ends.set()
    clients.join()
    server.end()


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        # Playwright gives it a user data directory of its own.
        browser = playwright.chromium.launch(
            executable_path=os.environ["CHROMIUM"], headless=False, args=FLAGS, timeout=PATIENCE_S * 1000
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens pages that note what must not happen: `page.noted` has requests elsewhere, violations and errors."""
    contexts = []

    def open_page(origin, fragment="", scheme="light"):
        page = new_page(browser, origin, fragment, scheme)
        contexts.append(page.context)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="session", autouse=True)
def two_pods(browser, tmp_path_factory):
    """A page with a key that two pods of a demo have counted. It is opened first, because shards of a demo are folded only
    after 90 s."""
    demo = Server(tmp_path_factory.mktemp("demo"), "demo", "--rate", "1")
    demo.add("two/pods", 5)
    demo.ask("POST", "/demo/pods/0/kill")
    demo.add("two/pods", 7)
    page = new_page(browser, demo.origin, "#/counter/two/pods", "light")
    expect(page.locator(".equation .total")).to_contain_text("12")
    expect(page.locator(".stem")).to_have_count(2)
    note_numbers(page)
    yield page
    page.context.close()
    demo.end()


def note_numbers(page):
    """Keeps the number and the total of the addition at each change of the page in `window.numbers`."""
    page.evaluate(
        """() => {
          window.numbers = new Set();
          const note = () => numbers.add(document.querySelector('.big .hidden').textContent
            + ' ' + document.querySelector('.equation .total b').textContent);
          new MutationObserver(note)
            .observe(document.querySelector('main'), {subtree: true, childList: true, characterData: true});
        }"""
    )


def new_page(browser, origin, fragment, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1360, "height": 900})
    context.set_default_timeout(PATIENCE_S * 1000)
    context.add_init_script(
        "addEventListener('securitypolicyviolation',"
        " (event) => console.error(`violates ${event.violatedDirective}`))"
    )
    page = context.new_page()
    page.noted, page.asked = [], []
    context.on("request", lambda request: note_request(page, origin, request))
    page.on("console", lambda message: message.type == "error" and page.noted.append(message.text))
    page.on("pageerror", lambda error: page.noted.append(str(error)))
    if folder := os.environ.get("PAGE"):
        replace_built_files(page, origin, pathlib.Path(folder))
    page.goto(f"{origin}/{fragment}")
    return page


def note_request(page, origin, request):
    page.asked.append(request.url.removeprefix(origin))
    if not request.url.startswith((f"{origin}/", "data:")):
        page.noted.append(f"a request to {request.url}")


def replace_built_files(page, origin, folder):
    """Gives the page the files of a folder, with the server's headers."""

    def replace(path, body):
        page.route(origin + path, lambda route: route.fulfill(response=route.fetch(), body=body))

    for path, name in [("/", "index.html"), ("/page/app.js", "app.js"), ("/page/app.css", "app.css")]:
        replace(path, (folder / name).read_bytes())
