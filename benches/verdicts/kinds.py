#!/usr/bin/env python3
"""Compares verdicts on blocks of all kinds, as a table: the program's own truth, memcheck's, LeakSanitizer's and memleak's.

usage: benches/verdicts/kinds.py [BLOCKS]      in the root of the repository; as root for the column of memleak

Builds tests/programs/verdicts/kinds.cpp and tests/programs/verdicts/unloaded.c, and has each tool judge the same state of the program, in
which all threads still run. memleak attaches before the first block. MEMLEAK names its program (default: target/release/memleak, or
that of target/debug); its column is empty if it knows no --verdict.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

PROGRAM = "tests/programs/verdicts/kinds.cpp"
LIBRARY = "tests/programs/verdicts/unloaded.c"
FLAGS = "-std=c++17 -O1 -g -Wall -Wextra -Wno-unused-but-set-variable -fno-omit-frame-pointer -pthread".split()
# Seconds for one tool; none takes a tenth of it on an idle machine.
PATIENCE = 300
# Name for blocks of none of the kinds: those that hold others, and the C library's own.
OTHERS = "(all others)"


def build(directory, name, flags):
    program = directory / name
    subprocess.run(["g++", *FLAGS, *flags, "-o", program, PROGRAM, "-ldl"], check=True)
    return program


def parse_truth(text):
    """Returns, by kind, in the program's order: number of blocks, truth, and how many of them are definitely and indirectly lost."""
    kinds = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3:
            kinds[words[0]] = (int(words[1]), words[2], tuple(map(int, words[3:])))
    assert len(kinds) > 44, f"the program says:\n{text}"
    return kinds


class Verdicts:
    """A tool's verdicts on each kind: numbers of blocks, by verdict."""

    def __init__(self, kinds, blocks=None):
        self.kinds = kinds
        self.blocks = blocks or {}

    def add(self, functions, word, blocks):
        kind = next((name for name in functions if name in self.kinds), OTHERS)
        words = self.blocks.setdefault(kind, {})
        words[word] = words.get(word, 0) + blocks


def memcheck(program, directory, blocks):
    log = directory / "memcheck.xml"
    # With --fair-sched, running threads take turns.
    command = ["valgrind", "-q", "--fair-sched=try", "--num-callers=40", "--leak-check=no", "--show-leak-kinds=all"]
    command += ["--xml=yes", f"--xml-file={log}", program, "exit", blocks]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
    verdicts = Verdicts(parse_truth(output))
    words = {"DefinitelyLost": "definite", "IndirectlyLost": "indirect", "PossiblyLost": "possible", "StillReachable": "held"}
    last = 0
    for error in xml.etree.ElementTree.parse(log).iter("error"):
        kind = error.findtext("kind")
        if not kind.startswith("Leak_"):
            continue
        # With XML, memcheck checks once more at the end, when other threads are gone: skip that.
        record = int(re.search(r"loss record ([\d,]+) of", error.findtext("xwhat/text"))[1].replace(",", ""))
        if record < last:
            break
        last = record
        functions = [frame.findtext("fn") for frame in error.find("stack")]
        verdicts.add(functions, words[kind.removeprefix("Leak_")], int(error.findtext("xwhat/leakedblocks")))
    return verdicts


def leak_sanitizer(program, directory, blocks):
    log = directory / "lsan"
    options = "fast_unwind_on_malloc=0:allocator_may_return_null=1:exitcode=0:log_threads=0"
    environment = dict(os.environ, LSAN_OPTIONS=f"{options}:log_path={log}")
    command = [program, "exit", blocks]
    process = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=PATIENCE)
    kinds = parse_truth(process.stdout)
    verdicts = Verdicts(kinds)
    (report,) = directory.glob("lsan.*")
    text = report.read_text()
    assert "LeakSanitizer has encountered a fatal error" not in text, text
    for leak in re.split(r"\n(?=Direct leak|Indirect leak)", text)[1:]:
        head, *lines = leak.split("\n\n")[0].splitlines()
        count = int(re.search(r"in (\d+) object", head)[1])
        functions = re.findall(r"#\d+ 0x[0-9a-f]+ in (\w+)", "\n".join(lines))
        verdicts.add(functions, "definite" if head.startswith("Direct") else "indirect", count)
    # LeakSanitizer lists only blocks that it calls lost; all others are held.
    for kind, (all_blocks, _, _) in kinds.items():
        words = verdicts.blocks.setdefault(kind, {})
        held = all_blocks - sum(words.values())
        if held:
            words["held"] = held
    return verdicts


def memleak_program():
    named = [os.environ.get("MEMLEAK"), "target/release/memleak", "target/debug/memleak"]
    return next((path for path in named if path and pathlib.Path(path).exists()), None)


def memleak(program, directory, blocks):
    """Returns memleak's verdicts; `None` for a memleak that has no --verdict. Kinds that make others unknown are judged
    in a process of their own, which has all of the others, too."""
    tool = memleak_program()
    if tool is None or "--verdict" not in subprocess.run([tool, "--help"], capture_output=True, text=True).stdout:
        return None
    verdicts, every = (judge(tool, [program, "attached", *words, blocks], directory) for words in (["shown"], []))
    return Verdicts(every.kinds, every.blocks | verdicts.blocks)


def judge(tool, command, directory):
    """Returns a memleak's verdicts on a program while it waits."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    target = subprocess.Popen(command, **pipes)
    messages = directory / "messages"
    arguments = ["-p", str(target.pid), "--verdict", "--format", "json", "--color", "never"]
    try:
        with open(messages, "w") as errors:
            tracer = subprocess.Popen([tool, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True)
        started = time.monotonic()
        while "tracing " not in messages.read_text():
            assert tracer.poll() is None and time.monotonic() - started < PATIENCE, messages.read_text()
            time.sleep(0.01)
        target.stdin.write("\n")
        target.stdin.flush()
        lines = []
        while not lines or lines[-1] != "ready\n":
            lines.append(target.stdout.readline())
            assert lines[-1], "the program ends early"
        tracer.terminate()
        reports, _ = tracer.communicate(timeout=PATIENCE)
    finally:
        target.kill()
        target.wait()
    sys.stderr.write(messages.read_text())
    verdicts = Verdicts(parse_truth("".join(lines)))
    words = {"definitely_lost": "definite", "indirectly_lost": "indirect", "reachable": "held", "unknown": "unknown"}
    for stack in json.loads(reports.splitlines()[-1])["stacks"]:
        functions = [frame.get("symbol") for frame in stack["frames"]]
        for part, word in words.items():
            count = stack["verdict"][part]["blocks"]
            if count:
                verdicts.add(functions, word, count)
    return verdicts


ORDER = ["definite", "indirect", "possible", "unknown", "held"]
SHOWN = {"definite": "lost", "indirect": "indirect", "possible": "possibly lost", "unknown": "unknown", "held": "held"}
LOST = ("definite", "indirect")


def describe(words):
    return ", ".join(f"{words[word]} {SHOWN[word]}" for word in ORDER if words.get(word))


def is_right(truth, parts, words):
    """Returns true if a tool's verdicts agree with the truth. Where memory cannot tell the truth, no verdict is wrong."""
    if truth == "held":
        return set(words) == {"held"}
    if truth == "lost":
        return words.get("definite", 0) + words.get("indirect", 0) == sum(parts)
    return True


def cell(verdicts, kind, blocks, truth, parts):
    if verdicts is None:
        return ""
    words = verdicts.blocks.get(kind, {})
    seen = sum(words.values())
    text = describe(words) or ("none lost" if kind == OTHERS else "nothing")
    if seen != blocks and kind != OTHERS:
        text += f", of {blocks}"
    return text if is_right(truth, parts, words) else f"**{text}**"


def summary(verdicts, kinds, truth, wrong):
    """Says how many blocks of a truth, and of how many kinds, have one of the `wrong` verdicts."""
    if verdicts is None:
        return ""
    names = [kind for kind, (_, word, _) in kinds.items() if word == truth]
    counts = [sum(verdicts.blocks.get(kind, {}).get(word, 0) for word in wrong) for kind in names]
    return f"{sum(counts)} blocks of {sum(map(bool, counts))} kinds"


def table(tools):
    kinds = next(verdicts for verdicts in tools.values() if verdicts).kinds
    yield f"| kind | truth | {' | '.join(tools)} |"
    yield "|---" * (2 + len(tools)) + "|"
    for kind, (blocks, truth, parts) in kinds.items():
        said = f"{blocks} {truth}"
        if truth == "lost":
            said = describe({"definite": parts[0], "indirect": parts[1]})
        cells = [cell(verdicts, kind, blocks, truth, parts) for verdicts in tools.values()]
        yield f"| `{kind}` | {said} | {' | '.join(cells)} |"
    cells = [cell(verdicts, OTHERS, 0, "", ()) for verdicts in tools.values()]
    yield f"| {OTHERS} | held | {' | '.join(cells)} |"
    rows = {
        "held, called lost": ("held", LOST),
        "held, called possibly lost or unknown": ("held", ("possible", "unknown")),
        "lost, called anything else": ("lost", ("possible", "unknown", "held")),
    }
    for name, (truth, wrong) in rows.items():
        amount = sum(blocks for blocks, word, _ in kinds.values() if word == truth)
        cells = [summary(verdicts, kinds, truth, wrong) for verdicts in tools.values()]
        yield f"| **{name}** | of {amount} | {' | '.join(cells)} |"


def main():
    blocks = (sys.argv[1:] or ["100"])[0]
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", directory / "unloaded.so", LIBRARY], check=True)
        plain = build(directory, "kinds", [])
        sanitized = build(directory, "kinds-sanitized", ["-fsanitize=leak"])
        tools = {
            "memcheck": memcheck(plain, directory, blocks),
            "LeakSanitizer": leak_sanitizer(sanitized, directory, blocks),
            "memleak": memleak(plain, directory, blocks),
        }
    print("\n".join(table(tools)))


main()
