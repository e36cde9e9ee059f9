#!/usr/bin/env python3
"""Cost of a verdict as tables: time and memory of memleak, and what the process notices.

usage: benches/verdicts/cost.py GIB:BLOCK_SIZE…      in the root of the repository, as root, for example 1:1024 4:4096
MEMLEAK names memleak's program (default: target/release/memleak, or that of target/debug); ROUNDS how often each is measured (5).

benches/verdicts/worker.c allocates GIB of memory in blocks of BLOCK_SIZE. In each round, while traced, it is
first left alone for 10 s, and then has a verdict made on it. All figures are medians.
"""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = int(os.environ.get("ROUNDS", "5"))


def memleak_program():
    named = [os.environ.get("MEMLEAK"), "target/release/memleak", "target/debug/memleak"]
    return next(path for path in named if path and pathlib.Path(path).exists())


class Worker:
    def __init__(self, program, blocks, size):
        self.process = subprocess.Popen([program, str(blocks), str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "started\n"

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def window(self):
        """Returns lookups, longest gap and longest wait in ms, and lookups per second of the worker's CPU time, all
        since the last call.
        """
        lookups, gap, wait, cpu = map(int, re.findall(r"\d+", self.step()))
        return lookups, gap / 1e6, wait / 1e6, lookups / max(cpu, 1) * 1e9


def trace(worker, blocks, directory):
    messages = directory / "messages"
    tool = [memleak_program(), "-p", str(worker.process.pid), "--verdict", "--verdict-limit", "900s", "--max-blocks", str(blocks * 5 // 4 + 10_000)]
    with open(messages, "w") as errors:
        tracer = subprocess.Popen([*tool, "--format", "json", "3600"], stdout=subprocess.PIPE, stderr=errors, text=True)
    while "tracing " not in messages.read_text():
        assert tracer.poll() is None, messages.read_text()
        time.sleep(0.02)
    return tracer


def verdict(worker, tracer):
    """Returns the report, what the worker has noticed meanwhile, and seconds of time and of CPU time."""
    before = os.times()
    worker.window()
    began = time.monotonic()
    tracer.send_signal(2)
    output, _ = tracer.communicate()
    after = os.times()
    passed = time.monotonic() - began
    noticed = worker.window()
    report = json.loads(output.splitlines()[-1])
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return report, noticed, passed, cpu


def measure(program, directory, gib, size):
    blocks = int(gib * (1 << 30)) // size
    rows, quiet, busy = [], [], []
    for number in range(ROUNDS):
        # Each round traces a new worker from its first allocation: memory from before the attach counts as a
        # root.
        worker = Worker(program, blocks, size)
        tracer = trace(worker, blocks, directory)
        assert worker.step() == "ready\n"
        worker.window()
        time.sleep(10)
        quiet.append((*worker.window(), 10))
        report, noticed, passed, cpu = verdict(worker, tracer)
        busy.append((*noticed, passed))
        facts = report["verdict"]
        assert facts["definitely_lost"]["blocks"] + facts["unknown"]["blocks"] == 0, facts
        rows.append((facts["passes"], facts["took_ns"] / 1e9, facts["read_bytes"], cpu, report["self"]["peak_bytes"], report["self"]["kernel_bytes"]))
        worker.process.kill()
        worker.process.wait()
    passes, took, read, cpu, peak, kernel = (statistics.median(row[at] for row in rows) for at in range(6))
    rate = [statistics.median(window[3] for window in windows) for windows in (quiet, busy)]
    gap, wait = ([statistics.median(window[at] for window in windows) for windows in (quiet, busy)] for at in (1, 2))
    cells = [f"{gib} GiB, {blocks:,}", f"{passes:.0f}", f"{took:.1f}", f"{took / passes / gib:.2f}", f"{read / passes / (gib * (1 << 30)):.2f}"]
    cells += [f"{cpu:.1f}", f"{peak / (1 << 20):,.0f}", f"{peak / blocks:.0f}", f"{kernel / blocks:.0f}", f"{100 * (rate[1] / rate[0] - 1):+.0f} %"]
    return cells + [f"{gap[0]:.0f} → {gap[1]:.0f}", f"{wait[0]:.0f} → {wait[1]:.0f}"]


def main():
    heads = ["blocks", "passes", "s", "s per GiB and pass", "read, of all", "CPU s", "MiB of memleak", "B per block", "B in the kernel"]
    heads += ["lookups per CPU s", "longest gap, ms", "longest wait too long, ms"]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|", flush=True)
    with tempfile.TemporaryDirectory() as path:
        program = pathlib.Path(path) / "worker"
        subprocess.run(["gcc", "-O2", "-g", "-pthread", "-o", program, "benches/verdicts/worker.c"], check=True)
        for label in sys.argv[1:]:
            gib, size = label.split(":")
            print(f"| {' | '.join(measure(program, pathlib.Path(path), float(gib), int(size)))} |", flush=True)


main()
