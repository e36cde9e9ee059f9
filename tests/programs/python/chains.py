# Allocates blocks in every way in which Python calls Python, and writes down what runs then: a line of JSON for each
# chain of functions, from the innermost one, with the number and the bytes of the blocks that it allocated.
#
# usage: chains.py FILE
import asyncio, contextlib, ctypes, functools, gc, itertools, json, operator, os, re, signal, sys, threading, time, weakref

SMALLEST = 300_000
sums, sizes, lock = {}, itertools.count(SMALLEST, 3), threading.Lock()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
scenes = []
# Bytes that a bytearray takes beyond those requested: a zero, and since 3.15 a whole bytes object.
MORE = 33 if sys.version_info >= (3, 15) else 1
if "t" in sys.abiflags:
    # Without a GIL, objects come from inlined functions of mimalloc: use blocks of the C library instead, which stay.
    bytearray, MORE = libc["malloc"], 0
    bytearray.argtypes, bytearray.restype = [ctypes.c_size_t], str


def running(frame):
    chain = []
    while frame:
        code = frame.f_code
        chain.append((getattr(code, "co_qualname", code.co_name), os.path.basename(code.co_filename), frame.f_lineno))
        frame = frame.f_back
    return tuple(chain)


def size(more=MORE):
    """The size of the caller's next block; `more` bytes are allocated than asked for."""
    chain, bytes = running(sys._getframe(1)), next(sizes)
    with lock:
        known = sums.setdefault(chain, [0, 0])
        known[0] += 1
        known[1] += bytes + more
    return bytes


def scene(function):
    scenes.append(function)
    return function


@scene
def recursion():
    def down(n):
        block = bytearray(size())
        if n: down(n - 1)
    down(60)


@scene
def generators():
    def nested(n):
        if n: yield from nested(n - 1)
        block = bytearray(size()); yield 1
        block = bytearray(size()); yield 2
    for _ in nested(10): pass
    list(nested(10)); sum(nested(5)); next(nested(3)); [*map(int, nested(4))]
    [bytearray(size()) for _ in nested(3)]
    {bytearray(size())[0]: 1 for _ in range(3)}
    list(bytearray(size()) for _ in range(3))
    def thrown():
        try: yield 1
        except ValueError: block = bytearray(size()); yield 2
        finally: block = bytearray(size())
    one = thrown(); next(one); one.throw(ValueError("x")); one.close()
    one = thrown(); next(one); del one


@scene
def callbacks():
    def key(x): bytearray(size()); return x
    sorted(range(20), key=key)
    sorted(range(5), key=lambda x: max(range(4), key=key))
    re.sub("a", lambda match: chr(97 + len(bytearray(size())) % 2), "banana")
    functools.reduce(lambda a, b: len(bytearray(size())), range(5))
    list(map(key, range(4))); list(filter(key, range(4)))
    sorted([3, 2, 1], key=functools.cmp_to_key(lambda a, b: len(bytearray(size())) * 0 + a - b))
    functools.partial(key, 1)(); operator.methodcaller("sort", key=key)([2, 1])
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def equal(a, b): bytearray(size()); return 0
    libc.qsort((ctypes.c_int * 8)(), 8, 4, compare(equal))


@scene
def special_methods():
    class Meta(type):
        def __call__(cls, *a): bytearray(size()); return super().__call__(*a)
    class Thing(metaclass=Meta):
        attribute = bytearray(size())
        def __new__(cls, *a): bytearray(size()); return super().__new__(cls)
        def __init__(self, *a, **k): bytearray(size())
        def __getattr__(self, n): bytearray(size()); return 1
        def __eq__(self, o): bytearray(size()); return False
        def __hash__(self): bytearray(size()); return 1
        def __enter__(self): bytearray(size())
        def __exit__(self, *a): bytearray(size())
        def __iter__(self): bytearray(size()); return iter([1, 2])
        def __repr__(self): bytearray(size()); return ""
        def __getitem__(self, i): bytearray(size()); return i
        def __add__(self, o): bytearray(size()); return 1
        def __len__(self): bytearray(size()); return 1
        def __bool__(self): bytearray(size()); return True
        @property
        def prop(self): bytearray(size()); return 1
    a = Thing(1, 2); a.foo; a == 3; {a: 1, Thing(): 2}; [Thing()].index(5) if 5 in [a] else 0
    with a: bytearray(size())
    [*a]; f"{a!r}"; a[1]; a + 1; len(a); a.prop
    if a: bytearray(size())


@scene
def often():
    """Calls that the interpreter has made its own way for: from 3.12 on, frames of its own are between them."""
    class Made:
        def __init__(self): self.block = bytearray(size())
        def __getitem__(self, at): return len(bytearray(size()))
        @property
        def read(self): return len(bytearray(size()))
    def make(): return Made()
    def numbers():
        for at in range(3): bytearray(size()); yield at
    for _ in range(40):
        made = make(); made.read; made[0]
        for _ in numbers(): pass


@scene
def ends_of_objects():
    class Last:
        def __del__(self): bytearray(size())
    def returns(): last = Last(); return 1
    def yields(): last = Last(); yield 1; yield 2
    def raises(): last = Last(); raise ValueError
    for _ in range(5): returns()
    list(yields()); one = yields(); next(one); del one
    for _ in range(5):
        try: raises()
        except ValueError: bytearray(size())
    def down(n):
        last = Last()
        if n: down(n - 1)
    down(8)
    a = Last(); b = weakref.ref(a, lambda r: bytearray(size())); del a
    c = Last(); c.c = c; del c; gc.collect()


@scene
def exceptions():
    def down(n):
        try:
            if n: down(n - 1)
            raise ValueError(bytearray(size()))
        except ValueError: bytearray(size())
        finally: bytearray(size())
    down(10)
    @contextlib.contextmanager
    def context(): bytearray(size()); yield; bytearray(size())
    with context(): bytearray(size())


@scene
def code_that_is_made():
    names = {"size": size, "bytearray": bytearray}
    exec("block = bytearray(size())\ndef made(): return bytearray(size())\nmade()", names)
    eval("bytearray(size())", names)
    # Each is gone before the next, which is at the same address.
    for number in range(300):
        exec(compile(f"def short_lived_{number}():\n\n bytearray(size())\nshort_lived_{number}()", f"made_{number}", "exec"), names)
    exec("def größe_λ(): bytearray(size())\ngröße_λ()", names)
    exec("def " + "long_" * 50 + "(): bytearray(size())\n" + "long_" * 50 + "()", names)


@scene
def coroutines():
    async def leaf(n):
        bytearray(size()); await asyncio.sleep(0); bytearray(size())
        if n: await leaf(n - 1)
        bytearray(size())
    async def numbers():
        for i in range(3): bytearray(size()); yield i
    async def main():
        await asyncio.gather(*[asyncio.create_task(leaf(5)) for _ in range(4)])
        async for _ in numbers(): bytearray(size())
    asyncio.run(main())


@scene
def signals():
    handled = []
    def handler(*a): bytearray(size()); handled.append(a)
    signal.signal(signal.SIGALRM, handler)
    # One after the other: on a busy machine, a handler takes longer than any interval.
    for number in range(1, 41):
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        while len(handled) < number: time.time()


@scene
def threads():
    sys.setswitchinterval(1e-5)
    def down(n):
        bytearray(size())
        libc.free(libc.malloc(size(0)))  # without the GIL
        if n: down(n - 1)
    def body():
        for _ in range(30): down(12)
    started = [threading.Thread(target=body) for _ in range(6)]
    [one.start() for one in started]; [one.join() for one in started]
    sys.setswitchinterval(5e-3)
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def begun_by_c(argument): down(5); return 0
    entry, thread = kind(begun_by_c), ctypes.c_ulong()
    for _ in range(3):
        libc.pthread_create(ctypes.byref(thread), None, entry, None)
        libc.pthread_join(thread, None)


print("ready", flush=True)
sys.stdin.readline()
for one in scenes: one()
with open(sys.argv[1], "w") as out:
    for chain, (blocks, bytes) in sums.items(): print(json.dumps([chain, blocks, bytes]), file=out)
print("done", flush=True)
sys.stdin.readline()
