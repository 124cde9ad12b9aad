"""The link between two data centres on one machine. It has a delay, and can be cut and healed.

Node N listens on 127.0.0.N. Other nodes and all pods know it by 127.0.1.N, where this program listens and passes on to
the node. Nodes 1 to 3 are in `east`, nodes 4 to 6 in `west`. What stays in a data centre passes at once. What goes to
the other one arrives DELAY later, each way.

While the link is cut, nothing passes. What was sent meanwhile arrives afterwards, as TCP would repeat it, up to 16 MiB
of each direction of a connection. Connections that were closed meanwhile are forgotten.

SIGUSR1 cuts the link, and SIGUSR2 heals it. The first line of the output is `ready`. SIGTERM ends the program; the last
line is then JSON with what the link has carried.
"""

import argparse
import asyncio
import json
import os
import pathlib
import signal
import socket

SIDES = {1: "east", 2: "east", 3: "east", 4: "west", 5: "west", 6: "west"}
NODES_PORT, PODS_PORT = 7000, 9042
# Bytes that are read at once, and reads of a direction that wait.
CHUNK, CHUNKS_MAX = 64 * 1024, 256
# The first message of a connection between nodes: magic, flags, then the sender as length, address and port.
SENDER_AT, ADDRESS_LENGTH = 8, 6
# The variable with the side of a pod, which pods.py sets.
VARIABLE = b"RELAY_SIDE="


class Link:
    """The link, and what it has carried."""

    def __init__(self, delay_s):
        self.delay_s = delay_s
        self.whole = asyncio.Event()
        self.whole.set()
        self.carried = {"connections": 0, "bytes": 0, "strangers": 0}

    def say(self, words):
        print(words, flush=True)

    def cut(self):
        self.whole.clear()
        self.say("cut")

    def heal(self):
        self.whole.set()
        self.say("healed")


def pod_side(port, number):
    """The data centre of the pod that is connected to this node from this port of 127.0.0.1, by its environment; None if it is
    not found."""
    address, there = f"0100007F:{port:04X}", f"{number:02X}01007F:{PODS_PORT:04X}"
    inode = None
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        # Connections to other addresses can have the same port.
        if (words[1], words[2]) == (address, there) and words[9] != "0":
            inode = words[9]
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            settings = (process / "environ").read_bytes().split(b"\0")
            side = next((one for one in settings if one.startswith(VARIABLE)), None)
            if side and any(
                os.readlink(entry) == f"socket:[{inode}]" for entry in (process / "fd").iterdir()
            ):
                return side[len(VARIABLE) :].decode()
        except OSError:
            # The process has ended, or belongs to another user.
            continue
    return None


async def caller(number, port, reader, writer):
    """The data centre that a connection comes from, and what was read to find out."""
    if port == PODS_PORT:
        return pod_side(writer.get_extra_info("peername")[1], number), b""
    first = await reader.readexactly(SENDER_AT + 1 + ADDRESS_LENGTH)
    sender = first[SENDER_AT + 1 : SENDER_AT + 5]
    if first[SENDER_AT] != ADDRESS_LENGTH or sender[:3] != bytes((127, 0, 1)):
        return None, first
    return SIDES.get(sender[3]), first


async def pass_on(reader, writer, first=b""):
    """Passes one direction of a connection at once."""
    chunk = first or await reader.read(CHUNK)
    while chunk:
        writer.write(chunk)
        await writer.drain()
        chunk = await reader.read(CHUNK)


async def pass_late(link, reader, writer, first=b""):
    """Passes one direction of a connection over the link."""
    clock = asyncio.get_running_loop().time
    waiting = asyncio.Queue(CHUNKS_MAX)

    async def take():
        try:
            chunk = first or await reader.read(CHUNK)
            while chunk:
                await waiting.put((clock() + link.delay_s, chunk))
                chunk = await reader.read(CHUNK)
        except OSError:
            # The sender has ended without a farewell.
            pass
        await waiting.put((clock() + link.delay_s, b""))

    taking = asyncio.ensure_future(take())
    try:
        while True:
            due, chunk = await waiting.get()
            await asyncio.sleep(max(0.0, due - clock()))
            await link.whole.wait()
            if not chunk:
                return
            writer.write(chunk)
            await writer.drain()
            link.carried["bytes"] += len(chunk)
    finally:
        taking.cancel()


async def carry(link, number, port, reader, writer):
    """Carries one connection until a side closes it."""
    there, running = None, []
    try:
        side, first = await caller(number, port, reader, writer)
        is_far = side != SIDES[number]
        if side is None:
            link.carried["strangers"] += 1
        if is_far:
            link.carried["connections"] += 1
            # A connection takes a round trip.
            await asyncio.sleep(2 * link.delay_s)
            await link.whole.wait()
            if reader.at_eof():
                return
        from_node, there = await asyncio.open_connection(f"127.0.0.{number}", port)
        for end in (writer, there):
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_far:
            ways = [pass_late(link, reader, there, first), pass_late(link, from_node, writer)]
        else:
            ways = [pass_on(reader, there, first), pass_on(from_node, writer)]
        running = [asyncio.ensure_future(way) for way in ways]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    except (OSError, asyncio.IncompleteReadError):
        # The node does not run, or a side has closed the connection.
        pass
    finally:
        for way in running:
            way.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for end in (writer, there):
            if end:
                end.close()


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-ms", type=float, default=20.0, help="delay of each way")
    link = Link(parser.parse_args().delay_ms / 1000)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, link.cut)
    loop.add_signal_handler(signal.SIGUSR2, link.heal)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    for number in SIDES:
        for port in (NODES_PORT, PODS_PORT):

            def accept(reader, writer, number=number, port=port):
                return carry(link, number, port, reader, writer)

            await asyncio.start_server(accept, f"127.0.1.{number}", port, backlog=512)
    link.say("ready")
    await ended.wait()
    link.say(json.dumps(link.carried))
    # Connections that are still open end with the process.
    os._exit(0)


asyncio.run(main())
