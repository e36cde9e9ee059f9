# Allocates a block of 2,000,001 bytes in a second interpreter, and one of 3,000,001 in the first one.
import sys

try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters

print("ready", flush=True)
sys.stdin.readline()
other = interpreters.create()
interpreters.run_string(other, """
kept = []
def of_the_second():
    kept.append(bytearray(2_000_000))
of_the_second()
""")


def of_the_first():
    return bytearray(3_000_000)


kept = of_the_first()
print("done", flush=True)
sys.stdin.readline()
