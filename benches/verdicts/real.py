#!/usr/bin/env python3
"""Compares verdicts on real programs at their end, stack by stack: memcheck's, LeakSanitizer's and memleak's, as a table.

usage: benches/verdicts/real.py [-v] [PROGRAM…]      in the root of the repository, as root

Each program does the same fixed work for each tool, at the same addresses. A stack is the innermost frames of an allocation, by module and
address in it, so that programs without symbols are compared as well. -v prints every stack on which memleak and memcheck do not agree.
MEMLEAK names memleak's program (default: target/release/memleak, or that of target/debug).
"""

import bisect
import collections
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree

# Frames by which stacks are told apart. Tools do not agree on what is outside main.
FRAMES = 14
# Seconds for one run of a program.
PATIENCE = 900
# personality(2): no random addresses.
ADDR_NO_RANDOMIZE = 0x0040000
# Libraries with LeakSanitizer. With gcc 12, liblsan ends a program that was not built with it at its first
# call of signal(), and libasan deadlocks in a program that has its own way to begin (gdb).
SANITIZERS = ("libasan.so.8", "liblsan.so.0")
# Seconds after which such a program counts as deadlocked.
SANITIZER_PATIENCE = 240
# Seconds within which memleak reads the unwind tables of libraries that a running program has loaded.
WAIT = 1

PYTHON_WORK = """
import collections, decimal, time, ctypes, email.message, functools, hashlib, itertools, json, re, sqlite3, string, textwrap, xml.etree.ElementTree, zlib
time.sleep(WAIT)
rows = [{"number": n, "text": str(n) * 5, "parts": [n, n + 1, {"half": n / 2}]} for n in range(3000)]
text = json.dumps(rows)
assert json.loads(text) == rows
words = collections.Counter(re.findall(r"[0-9a-f]{3}", hashlib.sha256(text.encode()).hexdigest() * 20))
packed = zlib.decompress(zlib.compress(text.encode()))
tree = xml.etree.ElementTree.fromstring("<a>" + "<b c='d'>e</b>" * 500 + "</a>")
base = sqlite3.connect(":memory:")
base.execute("create table t (a integer primary key, b text)")
base.executemany("insert into t values (?, ?)", ((row["number"], row["text"]) for row in rows))
assert base.execute("select count(*) from t where b like '%7%'").fetchone()[0] > 0
@functools.lru_cache(maxsize=100)
def power(number):
    return decimal.Decimal(number) ** 3
total = sum(power(number % 300) for number in range(2000))
lines = textwrap.wrap(text[:20000], 60)
"""
PYTHON_LOSS = """
allocate = ctypes.CDLL(None).malloc
allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
for number in range(1000):
    allocate(48)
"""
PERL_WORK = """
use Time::HiRes qw(sleep); use strict; use Data::Dumper; use List::Util qw(sum); use POSIX qw(floor); use Storable qw(dclone); use Text::Wrap;
sleep(WAIT);
my %words; my @rows;
for my $n (1 .. 4000) { push @rows, { n => $n, text => "row $n" x 3, sub => sub { $n + 1 } }; $words{substr($n * 7919, 0, 3)}++; }
my @found = grep { $_->{text} =~ /(\\d+)row \\1/ } @rows;
my $copy = dclone([map { { n => $_->{n} } } @rows]);
my $dump = Dumper([@{$copy}[0 .. 200]]);
my $back = eval "my " . $dump; my @sorted = sort { $b->{n} <=> $a->{n} } @rows;
my $ring = { name => 'ring' }; $ring->{self} = $ring; undef $ring;
my $text = join ' ', map { $_->{sub}->() } @sorted; $text = wrap('', '  ', substr($text, 0, 5000)); $text =~ s/(\\d)/<$1>/g;
open my $file, '<', $0 or 1; local $_ = sum(1 .. 100);
"""
SQL_WORK = """
create table t (a integer primary key, b text, c real);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 8000) insert into t select x, 'text ' || x, x / 7.0 from n;
create index i on t (b); create view v as select b, c from t where a % 3 = 0;
create trigger g after delete on t begin update t set c = c + 1 where a = old.a + 1; end;
select count(*), avg(c), group_concat(substr(b, 1, 1)) from v where b like '%7%';
delete from t where a % 5 = 0;
select x.b, y.c from t x join t y on x.a = y.a + 1 order by y.c desc limit 20;
select json_group_array(json_object('a', a, 'b', b)) from t where a < 50;
select sum(c) over (order by a rows 3 preceding) from t limit 30;
vacuum; analyze; explain query plan select * from t where b > 'text 5';
"""
BASH_WORK = """
declare -A table; list=()
fill() { local n; for ((n = 0; n < 4000; n++)); do table[key$n]="value $n"; list+=("item $n ${table[key$((n / 2))]}"); done; }
fill
for word in "${list[@]:0:500}"; do case $word in *7*) found+=" ${word//item/ITEM}" ;; *) other=${word%% *} ;; esac; done
read -r first second <<< "$found"; [[ $found =~ ([A-Z]+)\\ ([0-9]+) ]] && printf -v line '%s-%05d' "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
while IFS=: read -r name rest; do names[${#names[@]}]=$name; done < /etc/passwd
count=$(echo "$found" | wc -w); eval "copy=(\\"\\${list[@]}\\")"; unset 'table[key5]' list; trap 'true' EXIT; shopt -s extglob
"""
CXX_SOURCE = """
#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <unordered_map>
template <int N> struct Sum { static constexpr int value = N + Sum<N - 1>::value; };
template <> struct Sum<0> { static constexpr int value = 0; };
std::map<std::string, std::unordered_map<int, std::string>> table;
int find(const std::string &text) {
    std::regex pattern("([a-z]+)[0-9]*");
    std::smatch match;
    if (std::regex_search(text, match, pattern)) table[match[1]][Sum<200>::value] = text;
    return std::count_if(table.begin(), table.end(), [](auto &entry) { return !entry.second.empty(); });
}
"""
C_SOURCE = """
#include <stdlib.h>
struct node { struct node *next; int number; };
static struct node *push(struct node *list, int number) {
    struct node *node = malloc(sizeof *node);
    node->next = list; node->number = number;
    return node;
}
int main(void) {
    struct node *list = 0;
    for (int number = 0; number < 10; number++) list = push(list, number);
    return list->number != 9;
}
"""


class Program:
    """A command with its environment, options for memcheck, and the function that drives it while it runs."""

    def __init__(self, command, environment=None, memcheck=(), drive=None, status=(0,)):
        self.command, self.environment, self.memcheck = command, environment or {}, list(memcheck)
        self.drive, self.status = drive, status


def prepare(directory):
    """Writes what the programs work on; returns the programs by name."""
    files = {
        "work.py": PYTHON_WORK, "loss.py": PYTHON_WORK + PYTHON_LOSS, "work.pl": PERL_WORK, "work.sql": SQL_WORK, "work.sh": BASH_WORK,
        "work.cpp": CXX_SOURCE, "small.c": C_SOURCE,
    }
    for name, text in files.items():
        (directory / name).write_text(text.replace("WAIT", str(WAIT)))
    subprocess.run(["gcc", "-g", "-O0", "-o", "small", "small.c"], cwd=directory, check=True)
    make_repository(directory / "repository")
    port = free_port()
    fixed = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    by_malloc = dict(fixed, PYTHONMALLOC="malloc")
    gdb = ["-ex", "set confirm off", "-ex", "break push", "-ex", "run", "-ex", "bt", "-ex", "finish", "-ex", "info locals", "-ex", "ptype list"]
    git = ["git", "-C", "repository"]
    redis = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
    return {
        "python3": Program(["python3", "work.py"], fixed),
        "python3, loses 1000": Program(["python3", "loss.py"], fixed),
        "python3 by malloc": Program(["python3", "work.py"], by_malloc),
        "python3 by malloc, loses 1000": Program(["python3", "loss.py"], by_malloc),
        "perl": Program(["perl", "work.pl"], {"PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0"}),
        "sqlite3": Program(["sqlite3", ":memory:", ".read work.sql"]),
        "bash": Program(["bash", "work.sh"]),
        "clang": Program(["clang", "-O1", "-std=c++17", "-c", "-o", "work.o", "work.cpp"]),
        "gdb": Program(["gdb", "-nx", "-batch", *gdb, "small"], dict(fixed, DEBUGINFOD_URLS="")),
        "git log": Program([*git, "log", "-p", "--stat", "--graph"]),
        "git gc": Program([*git, "gc", "--prune=now"]),
        "git pack-objects": Program([*git, "pack-objects", "--all", "--threads=1", "--stdout", "-q"]),
        "redis": Program(redis, memcheck=["--soname-synonyms=somalloc=*jemalloc*"], drive=lambda: load_redis(port)),
    }


def make_repository(path):
    path.mkdir()
    git = ["git", "-C", path, "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for number in range(60):
        for name in range(number % 7, 30, 7):
            (path / f"file{name}").write_text("".join(f"line {line * number % 91}\n" for line in range(200)))
        subprocess.run([*git, "add", "."], check=True)
        date = f"2026-01-01T00:{number:02}:00Z"
        environment = dict(os.environ, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)
        subprocess.run([*git, "commit", "-q", "-m", f"change {number}"], check=True, env=environment)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def load_redis(port):
    """Sends commands of all types, and then shuts the server down."""
    client = ["redis-cli", "-p", str(port)]
    started = time.monotonic()
    while subprocess.run([*client, "ping"], capture_output=True, text=True).stdout != "PONG\n":
        assert time.monotonic() - started < PATIENCE, "redis does not answer"
        time.sleep(0.1)
    lines = []
    for number in range(1500):
        text = "x" * (number % 700)
        lines += [f"set s:{number} v{text}", f"append s:{number // 2} {number}", f"lpush l:{number % 20} {number}{text}", f"sadd t:{number % 9} {number}"]
        lines += [f"hset h:{number % 30} f{number} {number}", f"zadd z {number * 7 % 100} m{number}", f"expire s:{number // 3} 1000", f"del s:{number // 4}"]
        lines += [f"xadd x * f {number}", f"pfadd p {number}", f"setbit b {number * 13} 1", f"rpop l:{number % 20}", f"get s:{number}"]
    lines += ["eval \"for i=1,300 do redis.call('incr','n'..i) end return 1\" 0", "zrange z 0 -1 withscores", "sort l:1 alpha", "flushdb async"]
    subprocess.run(client, input="\n".join(lines) + "\n", check=True, text=True, capture_output=True)
    subprocess.run([*client, "shutdown", "nosave"], capture_output=True)


class Maps:
    """Files of a process by address, collected while it runs."""

    def __init__(self):
        self.found = {}
        self.is_over = threading.Event()

    def watch(self, pid):
        while not self.is_over.wait(0.02):
            try:
                text = pathlib.Path(f"/proc/{pid}/maps").read_text()
            except OSError:
                continue
            for line in text.splitlines():
                words = line.split(maxsplit=5)
                if len(words) == 6 and words[5].startswith("/") and "x" in words[1]:
                    start, end = (int(word, 16) for word in words[0].split("-"))
                    self.found[start] = (end, int(words[2], 16), words[5])

    def place(self, address):
        """Returns the module at an address, and the address in the module."""
        starts = sorted(self.found)
        at = bisect.bisect_right(starts, address) - 1
        if at < 0 or address >= self.found[starts[at]][0]:
            return ("?", address)
        _, offset, path = self.found[starts[at]]
        return (pathlib.Path(path).name, address_in(path, address - starts[at] + offset))


SEGMENTS = {}


def address_in(path, offset):
    """Returns the address that the byte at an offset of a file has in the file's own address space."""
    if path not in SEGMENTS:
        with open(path, "rb") as file:
            head = file.read(64)
            start, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
            file.seek(start)
            table = [struct.unpack_from("<IIQQQQQQ", file.read(size)) for _ in range(count)]
        SEGMENTS[path] = [(row[2], row[3], row[5]) for row in table if row[0] == 1]
    for file_offset, address, size in SEGMENTS[path]:
        if file_offset <= offset < file_offset + size:
            return offset - file_offset + address
    return offset


def run(program, command, directory, environment, watch=None, patience=PATIENCE):
    """Runs a tool on a program while the program does its work."""
    environment = dict(os.environ, LC_ALL="C", HOME=str(directory), **program.environment, **environment)

    def fix():
        ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)

    with open(directory / "messages", "w") as messages:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": messages}
        process = subprocess.Popen(command, cwd=directory, env=environment, preexec_fn=fix, **streams)
    if watch:
        threading.Thread(target=watch.watch, args=[process.pid], daemon=True).start()
    try:
        if program.drive:
            program.drive()
        process.wait(patience)
    finally:
        process.kill()
        if watch:
            watch.is_over.set()
    text = (directory / "messages").read_text(errors="replace")
    assert process.returncode in program.status, f"{command}: {process.returncode}\n{text}"
    return process.pid, text


# Allocator functions and wrappers of them, which not all tools show.
ALLOCATORS = re.compile(r"(operator new|malloc$|calloc$|realloc$|__interceptor|posix_memalign|aligned_alloc|memalign|reallocarray)")

# Callers of main.
OUTSIDE = re.compile(r"(\(below main\)|__libc_start|_start$)")


class Words:
    """A tool's verdicts on blocks, by stack."""

    def __init__(self):
        self.stacks = collections.defaultdict(collections.Counter)
        self.names = {}

    def add(self, frames, word, blocks, size):
        """Adds blocks of a stack. `frames`: module, address, and name if there is one, from the innermost."""
        while frames and ALLOCATORS.match(frames[0][2] or "") and frames[0][0] != "?":
            frames = frames[1:]
        frames = frames[: next((at for at, frame in enumerate(frames) if OUTSIDE.match(frame[2] or "")), FRAMES)][:FRAMES]
        key = tuple(frame[:2] for frame in frames)
        self.stacks[key][word] += blocks
        self.stacks[key][word + " bytes"] += size
        self.names[key] = [f"{name or hex(address)} [{module}]" for module, address, name in frames]

    def count(self, *words):
        return sum(counter[word] for counter in self.stacks.values() for word in words)


def memcheck(program, directory):
    log = directory / "memcheck.xml"
    log.unlink(missing_ok=True)
    command = ["valgrind", "-q", "--run-libc-freeres=no", "--run-cxx-freeres=no", "--leak-check=full", "--show-leak-kinds=all"]
    command += ["--num-callers=40", "--leak-resolution=high", "--undef-value-errors=no", "--child-silent-after-fork=yes"]
    command += ["--xml=yes", f"--xml-file={log}", *program.memcheck, *program.command]
    maps = Maps()
    run(program, command, directory, {}, maps)
    words = Words()
    kinds = {"DefinitelyLost": "lost", "IndirectlyLost": "indirect", "PossiblyLost": "possible", "StillReachable": "held"}
    for error in xml.etree.ElementTree.parse(log).iter("error"):
        kind = error.findtext("kind")
        if not kind.startswith("Leak_"):
            continue
        frames = []
        for frame in error.find("stack"):
            if "vgpreload" not in (frame.findtext("obj") or ""):
                # memcheck shows the last byte of a call: the next byte is the return address, which other
                # tools show.
                frames.append((*maps.place(int(frame.findtext("ip"), 16) + 1), frame.findtext("fn")))
        word = kinds[kind.removeprefix("Leak_")]
        words.add(frames, word, int(error.findtext("xwhat/leakedblocks")), int(error.findtext("xwhat/leakedbytes")))
    return words


def memleak(program, directory):
    named = [os.environ.get("MEMLEAK"), "target/release/memleak", "target/debug/memleak"]
    tool = next(path for path in named if path and pathlib.Path(path).exists())
    report = directory / "memleak.json"
    command = [pathlib.Path(tool).resolve(), "--verdict", "--format", "json", "-f", "--output", report, "--", *program.command]
    _, messages = run(program, command, directory, {})
    words = Words()
    lines = report.read_text().splitlines()
    assert lines, messages
    last = json.loads(lines[-1])
    assert last["verdict"]["unknown"]["blocks"] == 0, last["verdict"]
    assert last["lost"]["blocks"] == 0, last["lost"]
    parts = {"definitely_lost": "lost", "indirectly_lost": "indirect", "reachable": "held"}
    for stack in last["stacks"]:
        frames = []
        for frame in stack["frames"]:
            module = pathlib.Path(frame["module"] or "?").name
            frames.append((module, int(frame["address"], 16), frame["symbol"]))
        for part, word in parts.items():
            amount = stack["verdict"][part]
            if amount["blocks"]:
                words.add(frames, word, amount["blocks"], amount["bytes"])
    return words


def leak_sanitizer(program, directory):
    """Returns LeakSanitizer's verdicts on a program that was not built with it, or `None` and the reason if it fails."""
    options = "fast_unwind_on_malloc=0:malloc_context_size=40:exitcode=0:detect_leaks=1:symbolize=0:allocator_may_return_null=1"
    options += f":log_path={directory}/sanitizer"
    of_address = f"{options}:verify_asan_link_order=0:detect_odr_violation=0:handle_segv=0"
    for library in SANITIZERS:
        for old in directory.glob("sanitizer.*"):
            old.unlink()
        environment = {"LD_PRELOAD": library, "ASAN_OPTIONS": of_address, "LSAN_OPTIONS": options}
        try:
            pid, _ = run(program, program.command, directory, environment, patience=SANITIZER_PATIENCE)
            break
        except (AssertionError, subprocess.TimeoutExpired) as error:
            why = str(error).splitlines()[-1][:100]
    else:
        return None, why
    report = directory / f"sanitizer.{pid}"
    if not report.exists():
        return Words(), ""
    text = report.read_text(errors="replace")
    if "fatal error" in text:
        return None, next(line for line in text.splitlines() if "fatal error" in line)
    words = Words()
    for leak in re.split(r"\n(?=Direct leak|Indirect leak)", text)[1:]:
        head, *lines = leak.split("\n\n")[0].splitlines()
        size, count = map(int, re.search(r"leak of (\d+) byte\(s\) in (\d+) object", head).groups())
        frames = [(pathlib.Path(path).resolve().name, int(at, 16), None) for path, at in re.findall(r"\((/[^()+]*)\+(0x[0-9a-f]+)\)", "\n".join(lines))]
        # LeakSanitizer, too, shows the last byte of a call.
        frames = [(module, at + 1, None) for module, at, _ in frames if not module.startswith(("libasan", "liblsan"))]
        # Frames outside main have no names here: two functions of the C library, and the program's start.
        if [module.split(".")[0] for module, _, _ in frames[-3:-1]] == ["libc", "libc"]:
            frames = frames[:-3]
        words.add(frames, "lost", count, size)
    return words, ""


LOST = ("lost", "indirect")


def compare(one, other):
    """Returns numbers of blocks that both call lost, only `one`, and only `other`; and the stacks of the latter two."""
    both = only_one = only_other = 0
    odd = {}
    for key in {*one.stacks, *other.stacks}:
        a, b = (sum(words.stacks[key][word] for word in LOST) if key in words.stacks else 0 for words in (one, other))
        both += min(a, b)
        only_one += max(0, a - b)
        only_other += max(0, b - a)
        if a != b:
            odd[key] = (a, b)
    return both, only_one, only_other, odd


def explain(name, ours, theirs, odd):
    for key, (a, b) in sorted(odd.items(), key=lambda item: -abs(item[1][0] - item[1][1])):
        print(f"\n{name}: memleak calls {a} lost, memcheck {b}", file=sys.stderr)
        for tool, words in (("memleak", ours), ("memcheck", theirs)):
            print(f"  {tool}: {dict(words.stacks.get(key, {}))}", file=sys.stderr)
        for frame in (ours if key in ours.names else theirs).names[key]:
            print(f"    {frame}", file=sys.stderr)


def row(name, program, directory, is_verbose):
    ours, theirs = memleak(program, directory), memcheck(program, directory)
    sanitizer, why = leak_sanitizer(program, directory)
    both, extra, missed, odd = compare(ours, theirs)
    if is_verbose:
        explain(name, ours, theirs, odd)
    recall = f"{both / (both + missed):.3f}" if both + missed else "–"
    cells = [name, ours.count("held", *LOST), theirs.count("held", "possible", *LOST), theirs.count(*LOST), theirs.count("possible")]
    cells += [ours.count(*LOST), both, recall, missed, extra]
    if sanitizer is None:
        return cells + [f"none: {why}"]
    shared, more, less, _ = compare(sanitizer, theirs)
    return cells + [f"{shared}, {less} missed, {more} more"]


def main():
    arguments = sys.argv[1:]
    is_verbose = "-v" in arguments
    wanted = [argument for argument in arguments if argument != "-v"]
    heads = ["program", "blocks", "of memcheck", "lost by memcheck", "possibly", "lost by memleak", "by both", "recall", "missed", "more"]
    print(f"| {' | '.join(heads)} | LeakSanitizer |\n{'|---' * (len(heads) + 1)}|", flush=True)
    with tempfile.TemporaryDirectory() as path:
        directory = pathlib.Path(path)
        programs = prepare(directory)
        for name in wanted or programs:
            print(f"| {' | '.join(map(str, row(name, programs[name], directory, is_verbose)))} |", flush=True)


main()
