#!/usr/bin/env python3
"""Asks `memleak why` about programs that grow for known causes, and compares with what they count themselves, as a table.

usage: benches/why/causes.py [-t SECONDS] [CAUSE[+CAUSE]...]      in the root of the repository; as root

Without causes, all of them, some at the same time. MEMLEAK names its program (default: target/release/memleak, or that of target/debug);
PRELOAD an allocator's library for the C++ programs. Exits with 1 if a first cause is wrong, or an amount by more than a tenth.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = "tests/programs/growth/grow.cpp"
PYTHON_PROGRAM = "tests/programs/growth/grow.py"
JAVA_PROGRAM = "tests/programs/growth/Grow.java"
# Kind of the cause, the function that is responsible ("" if none can be known), and whether it grows all the time.
CAUSES = {
    "lost": ("lost", "lose", True),
    "kept": ("kept", "remember", True),
    "settled": (None, "", False),
    "pinned": ("pinned", "pin_some", True),
    "arenas": ("free_in_allocator", "", True),
    "peak": ("free_in_allocator", "", False),
    "threads": ("thread_stacks", "unjoined", True),
    "mappings": ("mappings", "map_some", True),
    "memfd": ("shared_memory", "fill_memfd", True),
    "sockets": ("kernel", "queue_some", True),
    "huge": ("huge_pages", "touch_huge", True),
    "files": ("files", "read_file", True),
    "stack": ("stack", "", False),
    "list": ("managed_heap", "remember", True),
    "heap": ("managed_heap", "", True),
}
PAIRS = ["lost+kept", "threads+pinned", "threads+lost", "mappings+memfd", "sockets+kept"]
# Programs that are asked about at the same time.
AT_ONCE = 3
MOST_ERROR = 0.1


class Program:
    """A program that grows, and what it says of that."""

    def __init__(self, command, environment):
        self.said = []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            cause, held = line.split()
            self.said.append((time.monotonic(), cause, int(held)))

    def held(self, cause):
        return [(at, held) for at, name, held in self.said if name == cause]

    def rate(self, cause, begin, end):
        points = [(at, held) for at, held in self.held(cause) if begin <= at <= end]
        (first, least), (last, most) = points[0], points[-1]
        return (most - least) / (last - first)


def command_of(causes, directory, seconds):
    words = [str(seconds)]
    if causes == ["list"]:
        return [sys.executable, PYTHON_PROGRAM, *words]
    if causes == ["heap"]:
        return ["java", "-Xmx512m", "-cp", str(directory), "Grow", *words]
    return [str(directory / "grow"), *words, *causes]


def build(directory):
    flags = ["-std=c++17", "-O1", "-g", "-pthread"]
    subprocess.run(["c++", *flags, "-o", directory / "grow", PROGRAM], check=True)
    subprocess.run(["javac", "-d", directory, JAVA_PROGRAM], check=True)


def memleak():
    found = [os.environ.get("MEMLEAK"), "target/release/memleak", "target/debug/memleak"]
    return next(path for path in found if path and pathlib.Path(path).exists())


def ask(name, directory, seconds):
    """Returns a row of the table, and whether all of it is right."""
    causes = name.split("+")
    environment = dict(os.environ)
    if "PRELOAD" in environment and not {"list", "heap"} & set(causes):
        environment["LD_PRELOAD"] = environment["PRELOAD"]
    program = Program(command_of(causes, directory, 3 * seconds), environment)
    try:
        time.sleep(3)
        begin = time.monotonic()
        command = [memleak(), "why", "-p", str(program.process.pid), f"{seconds}s", "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True)
        end = time.monotonic()
        if done.returncode != 0:
            return [name, done.stderr.strip(), "", "", "", "**wrong**"], False
        return row(name, program, json.loads(done.stdout), (begin, end))
    finally:
        program.process.terminate()
        program.process.wait()


def row(name, program, found, window):
    truth = {}
    for cause in name.split("+"):
        kind, function, grows = CAUSES[cause]
        own = program.rate(cause, *window) if grows else program.held(cause)[-1][1]
        truth[kind] = (own, function, grows)
    grows = any(grows for _, _, grows in truth.values())
    first = found["causes"][0] if found["causes"] else {"kind": None}
    shown = [shown_cause(cause) for cause in found["causes"][: len(truth) + 1]]
    problems = [] if found["grows"] == grows else [f"grows: {found['grows']}"]
    largest = max(truth, key=lambda kind: truth[kind][0])
    if first["kind"] not in truth if len(truth) > 1 else first["kind"] != largest:
        problems.append(f"first cause: {first['kind']}")
    errors = []
    for kind, (own, function, of_growth) in truth.items():
        if kind is None:
            continue
        same = [cause for cause in found["causes"] if cause["kind"] == kind]
        measured = sum(cause["bytes_per_second" if of_growth else "bytes"] for cause in same)
        errors.append(f"{measured / own - 1:+.1%}")
        if abs(measured / own - 1) > MOST_ERROR:
            problems.append(f"{kind}: amount")
        functions = [(cause["site"] or {}).get("function", "") for cause in same]
        if function and not any(function in found for found in functions):
            problems.append(f"{kind}: place {functions}")
    # Of one CPU, over the whole time.
    cost = sum((step["cost"] or 0) * step["took_ns"] for step in found["steps"]) / found["took_ns"]
    took = found["took_ns"] / 1e9
    cells = [name, "; ".join(shown), ", ".join(errors), f"{took:.0f} s", f"{cost:.2%}", "; ".join(problems) or "right"]
    return cells, not problems


def shown_cause(cause):
    site = cause["site"]
    place = f" `{site['function']}`" if site else ""
    return f"{cause['kind']} {cause['share']:.0%}{place} ({cause['certainty']})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-t", type=int, default=60, metavar="SECONDS")
    parser.add_argument("causes", nargs="*")
    arguments = parser.parse_args()
    names = arguments.causes or [*CAUSES, *PAIRS]
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        build(directory)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            rows = pool.map(lambda name: ask(name, directory, arguments.t), names)
            print("| program | causes found | amounts against its own | time | cost of tracing | |")
            print("|---|---|---|---|---|---|")
            right = True
            for cells, is_right in rows:
                print("|", " | ".join(cells), "|", flush=True)
                right &= is_right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
