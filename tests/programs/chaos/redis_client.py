"""Starts redis-server and lets it do all kinds of work; says what it answers. Ends with 42 if the server ended well.

The server's socket, its dump and a file with its pid are made beside STOP.

usage: redis_client.py ROUNDS STOP
"""
import os, socket, subprocess, sys, time, zlib

ROUNDS, STOP = int(sys.argv[1]), sys.argv[2]
DIRECTORY = os.path.dirname(STOP)
# A name of a socket must be short, that of a directory may be long.
SOCKET, PID_FILE = "redis.socket", "pid"
OPTIONS = {
    "port": "0", "unixsocket": SOCKET, "save": "", "appendonly": "no", "enable-debug-command": "yes", "io-threads": "2",
    "lazyfree-lazy-user-del": "yes", "loglevel": "warning", "maxclients": "50", "dir": DIRECTORY,
}


def start():
    os.chdir(DIRECTORY)
    words = ["/usr/bin/redis-server"]
    for name, value in OPTIONS.items():
        words += ["--" + name, value]
    server = subprocess.Popen(words, stdout=sys.stderr)
    while True:
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(SOCKET)
            break
        except OSError:
            time.sleep(0.01)
    with open(PID_FILE + ".new", "w") as file:
        file.write(str(server.pid))
    os.rename(PID_FILE + ".new", PID_FILE)
    return server, connection


def encode(command):
    words = [str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def reply(stream):
    """One answer, as it was sent."""
    line = stream.readline()
    kind, rest = line[:1], line[1:].strip()
    if kind == b"$" and rest != b"-1":
        return line + stream.read(int(rest) + 2)
    if kind == b"*" and rest != b"-1":
        return line + b"".join(reply(stream) for _ in range(int(rest)))
    if not line:
        sys.exit("the server is gone")
    return line


def commands(number):
    key = "key:%d" % (number % 40)
    yield ["SET", key, "v" * (number * 37 % 3000)]
    yield ["APPEND", key, "w" * (number % 500)]
    yield ["GET", key]
    yield ["LPUSH", "list", *range(number, number + 30)]
    yield ["LTRIM", "list", 0, 500]
    yield ["LRANGE", "list", 0, 20]
    yield ["ZADD", "sorted", *[part for n in range(20) for part in (n * number % 97, "m%d" % (n * number % 89))]]
    yield ["ZRANGE", "sorted", 0, 10, "WITHSCORES"]
    yield ["HSET", "hash", *[part for n in range(10) for part in ("f%d" % (number * n % 300), "x" * n)]]
    yield ["EVAL", "local t = {} for n = 1, 100 do t[n] = ('s'):rep(n) end return #table.concat(t)", 0]
    yield ["EVAL", "return redis.call('LPUSH', KEYS[1], 1)", 1, key]
    yield ["EVAL", "error('thrown') return 1", 0]
    yield ["SORT", "list", "LIMIT", 0, 5]
    yield ["DEL", "key:%d" % (number * 7 % 40)]
    if number % 50 == 0:
        yield ["DEBUG", "DIGEST"]
    if number % 200 == 0:
        yield ["DEBUG", "RELOAD"]
        yield ["FLUSHALL", "ASYNC"]


def main():
    server, connection = start()
    try:
        talk(connection)
    except BaseException:
        server.kill()
        raise
    status = server.wait()
    print("server:", status)
    return 42 if status == 0 else 1


def talk(connection):
    stream = connection.makefile("rb")
    done, total = 0, 0
    while done < ROUNDS if ROUNDS else not os.path.exists(STOP):
        batch = list(commands(done))
        connection.sendall(b"".join(map(encode, batch)))
        for _ in batch:
            total = zlib.crc32(reply(stream), total)
        done += 1
        print(done, total, flush=True)
        if not ROUNDS:
            time.sleep(0.002)
    connection.sendall(encode(["SHUTDOWN", "NOSAVE"]))


sys.exit(main())
