"""Threads, exceptions, deep recursion, children and the standard library's C parts.

usage: work.py ROUNDS STOP
"""
import concurrent.futures, ctypes, decimal, gc, hashlib, json, os, re, subprocess, sys, time, zlib


class Passed(Exception):
    def __init__(self, depth):
        super().__init__(f"from {depth}")
        self.text = "t" * depth


def fall(depth):
    held = [bytearray(64 + depth), {"depth": depth}]
    try:
        if depth == 0:
            raise Passed(len(held))
        fall(depth - 1)
    except Passed as error:
        if depth % 5 == 0:
            raise Passed(depth) from error
        raise
    finally:
        held.clear()


def chain(error):
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    return texts


def endless(number):
    return endless(number + 1) + 1


def too_deep():
    try:
        return endless(0)
    except RecursionError as error:
        return str(error)


def too_large():
    try:
        return bytearray(1 << 61)
    except (MemoryError, OverflowError) as error:
        return type(error).__name__


def by_the_c_library(number):
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    block = libc.malloc(100 + number)
    libc.free(block)
    return block is not None


def work(number):
    try:
        fall(20 + number % 20)
    except Passed as error:
        texts = chain(error)
    data = json.dumps({"texts": texts, "numbers": list(range(number % 200))}, sort_keys=True).encode()
    packed = zlib.compress(data * 10)
    words = re.findall(r"f(\w+) (\d+)", data.decode())
    value = decimal.Decimal(number).sqrt()
    if zlib.decompress(packed)[: len(data)] != data:
        raise AssertionError
    return [hashlib.sha256(packed).hexdigest(), words, str(value), too_large(), by_the_c_library(number)]


def main():
    rounds, stop = int(sys.argv[1]), sys.argv[2]
    done, total = 0, 0
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        while done < rounds if rounds else not os.path.exists(stop):
            results = list(pool.map(work, range(done, done + 12)))
            if done % 20 == 0:
                results.append(too_deep())
                child = subprocess.run(["/bin/sh", "-c", "echo said; exit 6"], stdout=subprocess.PIPE)
                results += [child.returncode, child.stdout.decode()]
                gc.collect()
            total = zlib.crc32(repr(results).encode(), total)
            done += 1
            print(done, total, flush=True)
            if not rounds:
                time.sleep(0.002)
    return 42


sys.exit(main())
