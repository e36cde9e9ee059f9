"""Writes a copy of the interpreter that runs this, which says that it is CPython 3.16.0."""

import ctypes
import os
import sys

constant = ctypes.addressof(ctypes.c_ulong.in_dll(ctypes.pythonapi, "Py_Version"))
with open("/proc/self/maps") as maps:
    for line in maps:
        places, _, offset = line.split()[:3]
        start, end = (int(place, 16) for place in places.split("-"))
        if start <= constant < end:
            at = constant - start + int(offset, 16)
with open("/proc/self/exe", "rb") as file:
    program = bytearray(file.read())
assert program[at + 3] == 3 and program[at + 2] == sys.version_info.minor
program[at + 1 : at + 3] = bytes([0, 16])
with open(sys.argv[1], "wb") as file:
    file.write(program)
os.chmod(sys.argv[1], 0o755)
