"""Prints code objects of files, one a line: its name, its first line, its table of lines, and the line that the interpreter has for each
instruction, in pieces `BYTES:LINE`, with 0 for none.

usage: lines.py FILE|MODULE…
"""

import ctypes
import importlib.util
import sys
import types

line_of = ctypes.pythonapi.PyCode_Addr2Line
line_of.argtypes = [ctypes.py_object, ctypes.c_int]


def pieces(code):
    step = 2
    found = []
    for at in range(0, len(code.co_code), step):
        line = max(line_of(code, at), 0)
        if found and found[-1][1] == line:
            found[-1][0] += step
        else:
            found.append([step, line])
    return found


def each(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from each(constant)


for name in sys.argv[1:]:
    path = name if name.endswith(".py") else importlib.util.find_spec(name).origin
    with open(path, "rb") as source:
        module = compile(source.read(), path, "exec")
    for code in each(module):
        table = code.co_linetable if hasattr(code, "co_linetable") else code.co_lnotab
        lines = " ".join(f"{length}:{line}" for length, line in pieces(code))
        print(code.co_name.replace(" ", "_"), code.co_firstlineno, table.hex() or "-", lines)
