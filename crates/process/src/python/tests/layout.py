"""Compares the offsets in CPython's structures, given as NAME=OFFSET, with what this interpreter has at them."""

import ctypes
import sys
import threading

OFFSET = {name: int(value) for name, value in (argument.split("=") for argument in sys.argv[1:])}
compared = set()


def at(address, name, kind=ctypes.c_uint64):
    compared.add(name)
    return kind.from_address(address + OFFSET[name]).value


def same(found, expected, what):
    assert found == expected, f"{what}: {found:#x}, not {expected:#x}"


def text_at(address):
    """Text of a str object."""
    length, state = at(address, "text.length"), at(address, "text.state", ctypes.c_uint32)
    compared.add("text.state_shift")
    state >>= OFFSET["text.state_shift"]
    width, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
    assert is_compact and width in (1, 2, 4), f"state {state:#x}"
    name = "text.ascii_data" if is_ascii else "text.compact_data"
    compared.add(name)
    data = ctypes.string_at(address + OFFSET[name], length * width)
    return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width])


def check_text():
    for text in ("ascii", "latin-\xe9", "wide-\u20ac", "wider-\U0001f40d"):
        assert text_at(id(text)) == text, text
    some = bytes(range(256))
    same(at(id(some), "bytes.length"), 256, "length of bytes")
    compared.add("bytes.data")
    assert ctypes.string_at(id(some) + OFFSET["bytes.data"], 256) == some


def check_code(code):
    same(at(id(code), "object.type"), id(type(code)), "type")
    assert text_at(at(id(code), "code.name")) == getattr(code, "co_qualname", code.co_name)
    assert text_at(at(id(code), "code.file")) == code.co_filename
    same(at(id(code), "code.first_line", ctypes.c_int), code.co_firstlineno, "first line")
    table = getattr(code, "co_linetable", None) or code.co_lnotab
    same(at(at(id(code), "code.line_table"), "bytes.length"), len(table), "length of the table of lines")
    data = at(id(code), "code.line_table") + OFFSET["bytes.data"]
    assert ctypes.string_at(data, len(table)) == table
    if "code.bytecode" in OFFSET:
        compared.add("code.bytecode")
        adaptive = code._co_code_adaptive
        assert ctypes.string_at(id(code) + OFFSET["code.bytecode"], len(adaptive)) == adaptive


def own_state():
    """This thread's state, by the key as from outside, if there is one, and as the interpreter says."""
    runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    get = ctypes.pythonapi.PyThreadState_Get
    get.restype = ctypes.c_void_p
    state = get()
    if "runtime.key" in OFFSET:
        key = at(runtime, "runtime.key", ctypes.c_uint32)
        assert ctypes.c_int.from_address(runtime + OFFSET["runtime.key"] - 4).value, "there is a key"
        specific = ctypes.pythonapi.pthread_getspecific
        specific.restype, specific.argtypes = ctypes.c_void_p, [ctypes.c_uint]
        same(specific(key), state, "state by the key")
    same(at(state, "thread.id"), threading.get_ident(), "thread")
    if "runtime.current" in OFFSET:
        same(at(runtime, "runtime.current"), state, "current state")
        same(at(runtime, "runtime.next_interpreter"), 1, "number of interpreters")
    return state


def frames(state):
    """Frames from the innermost: code, where it is, and the mark of an entry."""
    frame = at(state, "thread.frame")
    if "thread.cframe_frame" in OFFSET:
        frame = at(frame, "thread.cframe_frame")
    base = at(state, "thread.base") if "thread.base" in OFFSET else 0
    while frame != base:
        # From 3.14 on, two bits of a reference tell how it is counted.
        code = at(frame, "frame.code") & ~3
        instruction, mark = at(frame, "frame.instruction"), at(frame, "frame.mark", ctypes.c_uint8)
        if "frame.copy" in OFFSET and not ("shim" in OFFSET and mark == OFFSET["shim"]):
            # The first of the copies of its instructions is in the code object; this thread runs that.
            copies = at(code, "code.copies")
            copy = at(frame, "frame.copy", ctypes.c_int32)
            same(ctypes.c_uint64.from_address(copies + 8).value, code + OFFSET["code.bytecode"], "first copy")
            same(copy, 0, "copy")
        yield frame, code, instruction, mark
        frame = at(frame, "frame.back")


def is_in_data_stack(state, frame):
    chunk = at(state, "thread.chunk")
    while chunk:
        before, size = (ctypes.c_uint64.from_address(chunk + field).value for field in (0, 8))
        if chunk <= frame < chunk + size:
            return True
        chunk = before
    return False


def check_frames(state):
    chain, frame = [], sys._getframe()
    while frame:
        chain.append(frame)
        frame = frame.f_back
    found = list(frames(state))
    if "shim" in OFFSET:
        before = len(found)
        found = [frame for frame in found if frame[3] != OFFSET["shim"]]
        assert len(found) < before, "there are shims"
    elif OFFSET["minor"] == 11:
        assert [bool(frame[3]) for frame in found][-1], "the outermost frame is an entry"
    # The innermost ones are those of the generator and of this function, which have gone on since.
    while found and found[0][1] != id(chain[0].f_code):
        found.pop(0)
    assert [code for _, code, _, _ in found] == [id(frame.f_code) for frame in chain]
    for (address, code, instruction, _), frame in list(zip(found, chain))[1:]:
        if "code.bytecode" in OFFSET:
            same(instruction, code + OFFSET["code.bytecode"] + frame.f_lasti, "instruction")
            assert is_in_data_stack(state, address)
        else:
            lasti = ctypes.c_int(instruction & 0xFFFFFFFF).value
            same(lasti * (2 if OFFSET["minor"] == 10 else 1), frame.f_lasti, "instruction")


def nested(depth, state):
    if depth:
        nested(depth - 1, state)
    else:
        sorted([1], key=lambda _: check_frames(state))


check_text()
# Code that does not run at the moment: what runs changes its own instructions.
for method in (threading.Thread.start, threading.Event.wait, threading.Timer.run):
    check_code(method.__code__)
nested(50, own_state())
missing = OFFSET.keys() - compared - {"minor", "shim"}
assert not missing, f"not compared: {missing}"
print(f"{len(compared)} offsets, CPython {sys.version.split()[0]}")
