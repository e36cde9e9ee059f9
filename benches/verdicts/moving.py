#!/usr/bin/env python3
"""Verdicts on blocks whose pointers move all the time, as a table: how many held ones are called lost, and how many lost ones are found.

usage: benches/verdicts/moving.py [LABEL…]      in the root of the repository, as root; MEMLEAK names memleak's program
(default: target/release/memleak, or that of target/debug)

Builds tests/programs/verdicts/mover.c, which knows what is held: memleak attaches before the first block, its last report has a verdict, and
the program then walks through all of its places. A label is SIZE:RATE:THREADS, as 256M:max:2; without any, the whole table is made.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

SIZES = {"1M": (1 << 20, 20_000), "256M": (256 << 20, 1_000_000), "4G": (4 << 30, 1_000_000)}
LOADS = [("1000", 2), ("40000", 2), ("400000", 2), ("max", 1), ("max", 2), ("max", 4)]
LOST = 1000
LIMIT = "900s"


def memleak_program():
    named = [os.environ.get("MEMLEAK"), "target/release/memleak", "target/debug/memleak"]
    return next(path for path in named if path and pathlib.Path(path).exists())


def blocks_of(report, function):
    """Blocks allocated by a function: lost, reachable, unknown."""
    counts = [0, 0, 0]
    for stack in report["stacks"]:
        if any(frame["symbol"] == function for frame in stack["frames"]):
            verdict = stack["verdict"]
            for at, parts in enumerate((("definitely_lost", "indirectly_lost"), ("reachable",), ("unknown",))):
                counts[at] += sum(verdict[part]["blocks"] for part in parts)
    return counts


def run(program, directory, size, rate, threads):
    total, held = SIZES[size]
    command = [program, str(held), str(total), str(LOST), rate, str(threads)]
    target = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step():
        target.stdin.write("\n")
        target.stdin.flush()
        return target.stdout.readline().strip()

    assert target.stdout.readline() == "started\n"
    messages = directory / "messages"
    tool = [memleak_program(), "-p", str(target.pid), "--verdict", "--verdict-limit", LIMIT, "--max-blocks", str(held * 5 // 4 + 10_000)]
    with open(messages, "w") as errors:
        tracer = subprocess.Popen([*tool, "--format", "json", "3600"], stdout=subprocess.PIPE, stderr=errors, text=True)
    while "tracing " not in messages.read_text():
        assert tracer.poll() is None, messages.read_text()
        time.sleep(0.02)
    assert step() == "ready"
    began = time.monotonic()
    time.sleep(2)
    before = os.times()
    tracer.send_signal(2)
    output, _ = tracer.communicate()
    after = os.times()
    passed = time.monotonic() - began
    report = json.loads(output.splitlines()[-1])
    account = step()
    assert account.startswith(f"held {held} of {held},"), account
    target.wait()
    moves = int(re.search(r"(\d+) moves", account)[1])
    verdict = report["verdict"]
    false, _, unknown = blocks_of(report, "hold")
    found, _, _ = blocks_of(report, "lose")
    seconds = verdict["took_ns"] / 1e9
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    cells = [size, f"{held:,}", rate, threads, f"{moves / passed:,.0f}", verdict["passes"], f"{seconds:.1f}"]
    cells += [f"{seconds / verdict['passes']:.2f}", f"{cpu:.1f}", f"{report['self']['peak_bytes'] >> 20}"]
    cells += [false, f"{found} of {LOST}", unknown]
    return cells


def main():
    wanted = [label.split(":") for label in sys.argv[1:]] or [(size, *load) for size in SIZES for load in LOADS]
    heads = ["size", "held", "rate", "threads", "moves/s", "passes", "s", "s a pass", "CPU s", "MiB of memleak", "held, called lost"]
    heads += ["lost, found", "unknown"]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|", flush=True)
    with tempfile.TemporaryDirectory() as path:
        program = pathlib.Path(path) / "mover"
        subprocess.run(["gcc", "-O2", "-g", "-pthread", "-o", program, "tests/programs/verdicts/mover.c"], check=True)
        for size, rate, threads in wanted:
            print(f"| {' | '.join(map(str, run(program, pathlib.Path(path), size, rate, threads)))} |", flush=True)


main()
