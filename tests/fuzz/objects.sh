#!/bin/sh
# Makes small objects of every kind that is read, as seeds.
#
# usage: tests/fuzz/objects.sh DIRECTORY
set -eu
to=$1
mkdir -p "$to"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/f.cpp" <<'EOF'
extern "C" int other(void *, void *);
static inline int twice(int n) { return 2 * n; }
namespace space {
template <typename T> struct Box { T value; int get(int n) { return n ? get(n - 1) + twice(value) : 0; } };
}
extern "C" int f(int n) { char big[70000]; return other(big, __builtin_alloca(n)); }
extern "C" int g(int n) { space::Box<int> box = {n}; return n ? f(n) + g(n - 1) + box.get(n) : 0; }
EOF
# An allocator: functions that pass calls on, that throw, that continue elsewhere.
cat >"$work/a.cpp" <<'EOF'
typedef __SIZE_TYPE__ size_t;
extern "C" {
void *take(size_t, int);
void fail(size_t) __attribute__((noreturn));
void *malloc(size_t n) { return n > 64 ? take(n, 1) : take(64, 0); }
void *calloc(size_t n, size_t m) { return n ? malloc(n * m) : nullptr; }
void *memalign(size_t to, size_t n) { switch (to) { case 8: return take(n, 3); case 16: return malloc(n); case 32: return take(n, 5);
    case 64: return take(n, 6); case 128: return malloc(n + 9); case 256: return take(n, 7); } return malloc(n + to); }
void *je_malloc(size_t n) { return take(n, 2); }
void free(void *p) { if (p) take(0, *(char *)p); }
}
void *operator new(size_t n) { void *p = take(n, 4); if (!p) fail(n); return p; }
void *operator new[](size_t n) { return operator new(n); }
void operator delete(void *p) noexcept { free(p); }
EOF
# Objects that memleak looks for in CPython 3.11: types with a name, a size and a destructor, variables,
# functions.
cat >"$work/p.c" <<'EOF'
struct type { long head[3]; const char *name; long size, item; void (*dealloc)(void *); };
static void dealloc(void *code) { *(void **)code = 0; }
struct type PyCode_Type = {{1}, "code", 184, 0, dealloc}, PyFrame_Type = {{1}, "frame", 120, 0, dealloc};
struct type PyUnicode_Type = {{1}, "str", 80, 0, dealloc}, PyBytes_Type = {{1}, "bytes", 33, 1, dealloc};
const unsigned long Py_Version = 0x030b02f0;
char _PyRuntime[1024] = {1};
int _PyEval_EvalFrameDefault(int n) { return n ? _PyEval_EvalFrameDefault(n / 2) + n : 0; }
int PyEval_EvalFrameEx(int n) { return _PyEval_EvalFrameDefault(n); }
EOF
# Without any header: those of another target would need a package that nothing else needs.
common='-shared -nostdlib -nostdinc -fPIC -fno-exceptions'
build="${CXX:-g++} $common $work/f.cpp"
$build -O2 -o "$to/eh_frame"
allocator="$common -O2 $work/a.cpp"
${CXX:-g++} $allocator -o "$to/allocator"
${CC:-gcc} -shared -nostdlib -nostdinc -fPIC -O1 "$work/p.c" -o "$to/cpython"
clang++ --target=aarch64-linux-gnu -fuse-ld=lld $allocator -o "$to/aarch64_allocator"
$build -O2 -g -gdwarf-5 -o "$to/dwarf5"
$build -O1 -g1 -gdwarf-4 -fno-asynchronous-unwind-tables -o "$to/debug_frame"
clang++ --target=aarch64-linux-gnu -mbranch-protection=pac-ret -fuse-ld=lld $common \
    -fasynchronous-unwind-tables -O2 -g1 "$work/f.cpp" -o "$to/aarch64"
(cd "$work" && $build -O0 -g -gsplit-dwarf -o "$to/split")
objcopy --compress-debug-sections=zlib "$to/dwarf5" "$to/compressed"
objcopy --only-keep-debug "$to/dwarf5" "$work/eh_frame.debug"
objcopy --strip-all --add-gnu-debuglink="$work/eh_frame.debug" "$to/eh_frame" "$to/linked"
xz --keep "$work/eh_frame.debug"
objcopy --add-section .gnu_debugdata="$work/eh_frame.debug.xz" "$to/linked" "$to/mini_debug"
