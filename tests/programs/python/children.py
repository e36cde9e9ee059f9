# Forks children, each of which allocates in a function of its own, at addresses that others use, too; then runs Python.
import os, subprocess, sys, time

kept = []


def work(more):
    kept.append(bytearray(1_000_000 + more))


# By then, a tracer has noticed that this is Python.
time.sleep(0.5)
work(0)
for number in range(3):
    if os.fork() == 0:
        work(1)
        exec(f"def made_{number}():\n kept.append(bytearray(2_000_000 + {number}))\nmade_{number}()")
        os._exit(0)
    os.wait()
subprocess.run([sys.executable, "-c", "import os, time\ntime.sleep(0.5)\ndef executed():\n return bytearray(3_000_000)\nkept = executed()\nos._exit(0)"])
os._exit(0)
