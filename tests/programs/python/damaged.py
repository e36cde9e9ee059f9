# Allocates blocks while its own frames are damaged, each in a function named after the damage: 4,000,000 bytes or more.
import ctypes, sys

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
# Offset of the frame in a frame object, and offsets in the frame of its code, its caller and its instruction.
VERSION = sys.version_info[:2]
FRAME = 24
CODE, BACK, INSTRUCTION = {(3, 11): (32, 48, 56), (3, 12): (0, 8, 56), (3, 13): (0, 8, 56), (3, 14): (0, 8, 56)}[VERSION]
malloc = libc.malloc


def word(at):
    return ctypes.c_uint64.from_address(at)


def with_word(at, value, bytes):
    """Allocates while the word has that value. Nothing returns, and nothing is called but malloc, in the meantime."""
    field = word(at)
    known = field.value
    field.value = value
    block = malloc(bytes)
    field.value = known
    return block


def frame_of(depth):
    return word(id(sys._getframe(depth + 1)) + FRAME).value


def cycle():
    frame = frame_of(0)
    return with_word(frame + BACK, frame, 4_000_000)


def unreadable():
    return with_word(frame_of(0) + BACK, 16, 4_000_001)


def not_a_code_object():
    frame = frame_of(0)
    return with_word(frame + CODE, word(frame + CODE).value + 16, 4_000_002)


def far_instruction():
    return with_word(frame_of(0) + INSTRUCTION, 0, 4_000_003)


def recursion(n):
    return recursion(n - 1) if n else malloc(4_000_004)


print("ready", flush=True)
sys.stdin.readline()
kept = [cycle(), unreadable(), not_a_code_object(), far_instruction(), recursion(400)]
print("done", flush=True)
sys.stdin.readline()
