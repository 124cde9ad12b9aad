#!/usr/bin/env python3
"""Exchanges sketches with Apache DataSketches for Python (`pip install datasketches==5.2.0`).

    interchange.py write DIR   Counts known items with Python's library and writes each sketch to
                               DIR/{cpc,theta}-{strings,ints}-{n}-{lg_k}.bin: the fixtures that
                               core/tests/interchange.rs compares with sketches of its own.
    interchange.py read DIR    Reads every sketch so named in DIR, from any writer, and prints one
                               line of JSON for each: file, estimate, lower and upper bound at
                               two standard deviations. Fails if one can't be read, or if its bounds
                               at three standard deviations do not enclose n.

The items are the strings "item-0" to "item-{n-1}", or the integers 0 to n-1. The Theta sketches of
strings are trimmed to k hashes, those of integers keep up to 15/8 k, as a Theta sketch may.
"""

import json
import pathlib
import sys

import datasketches

SIZES = [(0, 11), (1, 11), (100, 11), (10_000, 11), (10_000, 12)]


def items(form, n):
    return (f"item-{i}" if form == "strings" else i for i in range(n))


def cpc(form, n, lg_k):
    sketch = datasketches.cpc_sketch(lg_k)
    for item in items(form, n):
        sketch.update(item)
    return sketch.serialize()


def theta(form, n, lg_k):
    sketch = datasketches.update_theta_sketch(lg_k)
    for item in items(form, n):
        sketch.update(item)
    if form == "strings":
        sketch.trim()
    return sketch.compact().serialize(compress=True)


def write(directory):
    directory.mkdir(parents=True, exist_ok=True)
    for family, make in [("cpc", cpc), ("theta", theta)]:
        for form in ["strings", "ints"]:
            for n, lg_k in SIZES:
                # A large Theta sketch of lg_k 12 has 27 KB, too much for a fixture.
                if family == "theta" and lg_k == 12:
                    continue
                path = directory / f"{family}-{form}-{n}-{lg_k}.bin"
                path.write_bytes(make(form, n, lg_k))


def read(directory):
    paths = sorted(directory.glob("*.bin"))
    if not paths:
        sys.exit(f"no sketches in {directory}")
    for path in paths:
        family, _, n, _ = path.stem.split("-")
        of_family = {
            "cpc": datasketches.cpc_sketch,
            "theta": datasketches.compact_theta_sketch,
        }[family]
        sketch = of_family.deserialize(path.read_bytes())
        estimate = sketch.get_estimate()
        lower, upper = sketch.get_lower_bound(2), sketch.get_upper_bound(2)
        print(json.dumps({"file": path.name, "estimate": estimate, "lower": lower, "upper": upper}))
        if not sketch.get_lower_bound(3) <= int(n) <= sketch.get_upper_bound(3):
            sys.exit(f"{path.name}: {n} items, but the estimate is {estimate}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", directory]:
            write(pathlib.Path(directory))
        case ["read", directory]:
            read(pathlib.Path(directory))
        case _:
            sys.exit(__doc__)
