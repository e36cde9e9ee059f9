"""Grows by records in a list that nothing leaves: some 1 MB a second.

usage: grow.py SECONDS

Prints a line `list BYTES` each second: the bytes of the records that it holds by then.
"""

import sys
import time

STEPS = 100

records = []


def remember():
    """Adds 50 records of about 200 bytes."""
    size = 0
    for number in range(50):
        record = (len(records) + 1000, float(number), str(number) + "abcdefghij")
        records.append(record)
        size += sys.getsizeof(record) + sum(map(sys.getsizeof, record)) + 8
    return size


def main():
    held, until = 0, time.monotonic()
    for step in range(int(sys.argv[1]) * STEPS):
        held += remember()
        if step % STEPS == STEPS - 1:
            print("list", held, flush=True)
        until += 1 / STEPS
        time.sleep(max(0, until - time.monotonic()))


main()
