"""Prints where this process has what is looked for in the file of its CPython, that file, and the version."""

import ctypes
import sys


def address(name):
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name))


runtime, code_type = address("_PyRuntime"), id(type(compile("", "", "exec")))
with open("/proc/self/maps") as maps:
    for line in maps:
        places, _, _, _, _, *path = line.split()
        start, end = (int(place, 16) for place in places.split("-"))
        if start <= code_type < end:
            print(path[0])
# Each object of a build without a lock has 16 bytes more.
dealloc = ctypes.c_uint64.from_address(code_type + (64 if "t" in sys.abiflags else 48)).value
print(runtime, code_type, dealloc, address("_PyEval_EvalFrameDefault"))
print("%d.%d.%d" % sys.version_info[:3])
