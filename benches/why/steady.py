#!/usr/bin/env python3
"""Asks `memleak why` about real programs without a fault, under load, again and again, and counts wrong causes, as a table.

usage: benches/why/steady.py [-m MINUTES] [-t SECONDS] [PROGRAM...]      in the root of the repository; as root

Each program serves its load for MINUTES (default: 60), and is asked about for SECONDS (default: 60) at a time. Wrong is an answer that it grows,
with its causes; the memory that the process itself gained meanwhile is shown beside it. Programs that are not installed are left out. MEMLEAK
names its program (default: target/release/memleak, or that of target/debug).
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

# Seconds in which a program begins its work, and fills its caches.
WARM_UP = 45

NODE = """
const entries = new Map();
require('http').createServer((request, response) => {
  const key = Math.floor(Math.random() * 1000);
  entries.set(key, 'x'.repeat(1000) + key);
  response.end(JSON.stringify({ key, text: entries.get(key) }));
}).listen(PORT);
"""
JAVA = """
public class Serve {
    public static void main(String[] words) throws Exception {
        var server = com.sun.net.httpserver.HttpServer.create(new java.net.InetSocketAddress(PORT), 0);
        server.createContext("/", exchange -> {
            var text = new StringBuilder();
            for (int i = 0; i < 1000; i++) text.append(i);
            byte[] bytes = text.toString().getBytes();
            exchange.sendResponseHeaders(200, bytes.length);
            exchange.getResponseBody().write(bytes);
            exchange.close();
        });
        server.start();
    }
}
"""
PYTHON = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        text = json.dumps([{"number": n} for n in range(200)]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""
RUBY = """
require "socket"
server = TCPServer.new("127.0.0.1", PORT)
loop do
  client = server.accept
  while (line = client.gets)
    break if line.nil?
    next unless line == "\\r\\n"
    text = (1..200).map { |n| n.to_s * 3 }.join(",")
    client.write("HTTP/1.1 200 OK\\r\\nContent-Length: #{text.size}\\r\\n\\r\\n#{text}")
  end
  client.close
end
"""
PERL = """
my @kept; while (1) { push @kept, { number => $_, text => "x" x 100 } for 1 .. 100; splice @kept, 0, @kept - 2000 if @kept > 2000; select undef, undef, undef, 0.01 }
"""
NGINX = """
daemon off; master_process off; error_log stderr crit; pid DIRECTORY/nginx.pid;
events { worker_connections 64; }
http { access_log off; client_body_temp_path DIRECTORY; proxy_temp_path DIRECTORY; fastcgi_temp_path DIRECTORY; uwsgi_temp_path DIRECTORY;
scgi_temp_path DIRECTORY; server { listen 127.0.0.1:PORT; location / { return 200 "some text"; } } }
"""


class Program:
    """A program that runs, the process that is asked about, and its load."""

    def __init__(self, directory, port):
        self.directory, self.port, self.started, self.ends = directory, port, [], threading.Event()

    def start(self, *command, **options):
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": self.directory} | options
        process = subprocess.Popen([str(word) for word in command], **options)
        self.started.append(process)
        return process.pid

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text.replace("PORT", str(self.port)).replace("DIRECTORY", str(self.directory)))
        return path

    def serve(self, path="/", pause=0.005):
        """Keeps two clients asking."""

        def ask():
            while not self.ends.is_set():
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
                    for _ in range(1000):
                        connection.request("GET", path)
                        connection.getresponse().read()
                        if self.ends.wait(pause):
                            return
                    connection.close()
                except (OSError, http.client.HTTPException):
                    self.ends.wait(0.5)

        for _ in range(2):
            threading.Thread(target=ask, daemon=True).start()

    def stop(self):
        self.ends.set()
        for process in reversed(self.started):
            process.terminate()
            process.wait()


def redis(program):
    pid = program.start("redis-server", "--port", program.port, "--save", "", "--dir", program.directory)
    time.sleep(1)
    program.start("redis-benchmark", "-p", program.port, "-q", "-l", "-c", "4", "-r", "10000", "-n", "100000", "-t", "set,get,lpush,lpop,hset")
    return pid


def nginx(program):
    pid = program.start("nginx", "-c", program.write("nginx.conf", NGINX), "-p", program.directory)
    program.serve()
    return pid


def postgres(program):
    bin = next(iter(sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)))
    shutil.chown(program.directory, "postgres", "postgres")
    as_user = ["runuser", "-u", "postgres", "--"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": True, "cwd": "/"}
    data = program.directory / "data"
    subprocess.run([*as_user, bin / "initdb", "-D", data, "-A", "trust"], **quiet)
    program.start(*as_user, bin / "postgres", "-D", data, "-p", program.port, "-k", program.directory, cwd="/")
    time.sleep(3)
    host = ["-h", str(program.directory), "-p", str(program.port), "-U", "postgres"]
    subprocess.run([*as_user, bin / "pgbench", *host, "-i", "-s", "2", "postgres"], **quiet)
    program.start(*as_user, bin / "pgbench", *host, "-c", "1", "-T", "86400", "-R", "200", "postgres", cwd="/")
    time.sleep(2)
    query = "select pid from pg_stat_activity where application_name = 'pgbench'"
    found = subprocess.run([*as_user, "psql", *host, "-Atc", query, "postgres"], capture_output=True, text=True, check=True, cwd="/")
    return int(found.stdout.split()[0])


def node(program):
    pid = program.start("node", program.write("serve.js", NODE))
    program.serve()
    return pid


def java(program):
    pid = program.start("java", "-Xmx256m", program.write("Serve.java", JAVA))
    program.serve()
    return pid


def python(program):
    pid = program.start(sys.executable, program.write("serve.py", PYTHON))
    program.serve()
    return pid


def php(program):
    program.write("index.php", "<?php echo json_encode(range(1, 500));")
    pid = program.start("php", "-S", f"127.0.0.1:{program.port}")
    program.serve("/index.php")
    return pid


def ruby(program):
    pid = program.start("ruby", program.write("serve.rb", RUBY))
    program.serve()
    return pid


def perl(program):
    return program.start("perl", "-e", PERL)


def prometheus(program):
    settings = program.write("prometheus.yml", "global: {scrape_interval: 5s}\n")
    address = f"127.0.0.1:{program.port}"
    pid = program.start("prometheus", f"--config.file={settings}", f"--storage.tsdb.path={program.directory}", f"--web.listen-address={address}")
    program.serve("/metrics", pause=0.2)
    return pid


PROGRAMS = {
    "redis": ("redis-server", redis),
    "nginx": ("nginx", nginx),
    "postgres": ("pgbench", postgres),
    "node": ("node", node),
    "java": ("java", java),
    "python": ("python3", python),
    "php": ("php", php),
    "ruby": ("ruby", ruby),
    "perl": ("perl", perl),
    "prometheus": ("prometheus", prometheus),
}


def memleak():
    found = [os.environ.get("MEMLEAK"), "target/release/memleak", "target/debug/memleak"]
    return next(str(pathlib.Path(path).absolute()) for path in found if path and pathlib.Path(path).exists())


def resident(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", type=float, default=60, metavar="MINUTES")
    parser.add_argument("-t", type=int, default=60, metavar="SECONDS")
    parser.add_argument("programs", nargs="*")
    arguments = parser.parse_args()
    names = [name for name in arguments.programs or PROGRAMS if shutil.which(PROGRAMS[name][0])]
    running, answers = {}, collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        try:
            for number, name in enumerate(names):
                place = pathlib.Path(directory) / name
                place.mkdir()
                os.chmod(directory, 0o755)
                program = Program(place, 21700 + number)
                running[name] = (program, PROGRAMS[name][1](program))
            time.sleep(WARM_UP)
            began = {name: resident(pid) for name, (_, pid) in running.items()}
            until = time.monotonic() + 60 * arguments.m
            while time.monotonic() < until:
                for name, (_, pid) in running.items():
                    before = resident(pid)
                    command = [memleak(), "why", "-p", str(pid), f"{arguments.t}s", "--format", "json"]
                    done = subprocess.run(command, capture_output=True, text=True)
                    found = json.loads(done.stdout) if done.returncode == 0 else {"grows": done.stderr, "causes": []}
                    answers[name].append((found, resident(pid) - before))
            print("| program | does not grow | not sure yet | grows | causes given, with the KiB by which it grew meanwhile | grew in all, KiB |")
            print("|---|---|---|---|---|---|")
            for name, (_, pid) in running.items():
                print(row(name, answers[name], resident(pid) - began[name]))
        finally:
            for program, _ in running.values():
                program.stop()


def row(name, answers, grown):
    counts = collections.Counter(str(found["grows"]) for found, _ in answers)
    causes = [
        f"{cause['kind']} {cause['share']:.0%} {cause['certainty']} ({more})"
        for found, more in answers
        if found["grows"] not in (False, None)
        for cause in found["causes"]
        if cause["bytes_per_second"] > 0
    ]
    others = len(answers) - counts["False"] - counts["None"]
    cells = [name, counts["False"], counts["None"], others, "; ".join(causes), grown]
    return "| " + " | ".join(map(str, cells)) + " |"


main()
