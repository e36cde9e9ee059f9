// Grows for the causes that are named, each by its own account:
//
//   grow SECONDS CAUSE…
//
// Prints a line `CAUSE BYTES` for each cause every second: the bytes that it holds by then.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <malloc.h>
#include <map>
#include <pthread.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr size_t PAGE = 4096;
/// Steps of a second.
constexpr int STEPS = 100;

/// What a cause does in each step, and the bytes that it holds.
struct Cause {
    std::function<void()> step;
    std::function<uint64_t()> held;
};

uint64_t lost_bytes;

/// Loses 10 blocks of 1000 bytes: 1 MB a second.
__attribute__((noinline)) void lose() {
    for (int i = 0; i < 10; i++) {
        void *volatile block = malloc(1000);
        memset(block, 1, 1000);
        lost_bytes += 1000;
    }
}

struct Session {
    char data[992];
    virtual ~Session() = default;
};

std::map<uint64_t, Session *> sessions;

/// Adds 10 sessions of 1000 bytes to a map that nothing leaves: 1 MB a second.
__attribute__((noinline)) void remember() {
    for (int i = 0; i < 10; i++) {
        auto *session = new Session;
        memset(session->data, 1, sizeof session->data);
        sessions[sessions.size()] = session;
    }
}

std::deque<char *> recent;

/// A cache of 20 MB, which is full from the first second on.
__attribute__((noinline)) void refresh() {
    for (int i = 0; i < (recent.size() < 20000 ? 1000 : 10); i++) {
        auto *entry = static_cast<char *>(malloc(1000));
        memset(entry, 1, 1000);
        recent.push_back(entry);
        if (recent.size() > 20000) {
            free(recent.front());
            recent.pop_front();
        }
    }
}

std::vector<void *> pins;

/// Free memory below the heap's end, by malloc's own account.
uint64_t pinned_bytes() {
    struct mallinfo2 info = mallinfo2();
    return info.fordblks - info.keepcost;
}

/// Ten times a second allocates 16 buffers of 30 KB, and shrinks them to 64 bytes each, so that they pin what is behind
/// them: some 4 MB a second. The next buffers are larger, and do not fit in there.
__attribute__((noinline)) void pin_some() {
    static int steps;
    static size_t size = 30000;
    if (steps++ % 10 != 0)
        return;
    std::vector<void *> buffers;
    for (int i = 0; i < 16; i++) {
        buffers.push_back(malloc(size));
        memset(buffers.back(), 1, size);
    }
    for (void *buffer : buffers)
        pins.push_back(realloc(buffer, 64));
    size += 16;
}

uint64_t peaks;
pthread_t workers[16];
int worker_count;

/// A thread allocates 4 MB in an arena, frees all but the last block, and stays.
void *work(void *) {
    std::vector<char *> all;
    for (int i = 0; i < 4000; i++) {
        all.push_back(static_cast<char *>(malloc(1000)));
        memset(all.back(), 1, 1000);
    }
    for (int i = 0; i < 3999; i++)
        free(all[i]);
    pause();
    return nullptr;
}

/// Starts another such thread each four seconds. With two CPUs, glibc makes 16 arenas at most.
__attribute__((noinline)) void employ() {
    static int steps;
    if (steps++ % (4 * STEPS) != 0 || worker_count == 16)
        return;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_create(&workers[worker_count++], &attributes, work, nullptr);
}

/// Once allocates 100 MB in small blocks, and frees all but the last one.
__attribute__((noinline)) void peak_once() {
    if (peaks > 0)
        return;
    std::vector<char *> all;
    for (int i = 0; i < 100000; i++) {
        all.push_back(static_cast<char *>(malloc(1000)));
        memset(all.back(), 1, 1000);
    }
    for (int i = 0; i < 99999; i++)
        free(all[i]);
    peaks = 99999ull * 1008;
}

uint64_t ended_threads;

/// What glibc leaves resident of the stack of a thread that has ended: it gives back what lies below the thread's last
/// frames. With the thread's own data, six pages.
constexpr uint64_t LEFT = 6 * PAGE;

/// Touches 64 KiB of its stack, and ends.
void *touch(void *) {
    volatile char stack[64 << 10];
    for (size_t i = 0; i < sizeof stack; i += PAGE)
        stack[i] = 1;
    return nullptr;
}

/// Starts a thread ten times a second that nobody joins.
__attribute__((noinline)) void unjoined() {
    static int steps;
    if (steps++ % 10 != 0)
        return;
    pthread_t thread;
    if (pthread_create(&thread, nullptr, touch, nullptr) == 0)
        ended_threads++;
}

uint64_t mapped_bytes;

/// Maps 64 KiB, of which it touches 32: 1.6 MB a second.
__attribute__((noinline)) void map_some() {
    static int steps;
    if (steps++ % 2 != 0)
        return;
    auto *memory = static_cast<char *>(mmap(nullptr, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(memory, 1, 32 << 10);
    mapped_bytes += 32 << 10;
}

int memfd = -1;
uint64_t memfd_bytes;

/// Writes 16 KiB to a memfd: 1.6 MB a second.
__attribute__((noinline)) void fill_memfd() {
    if (memfd < 0)
        memfd = memfd_create("frames", 0);
    static char page[16 << 10] = {1};
    if (write(memfd, page, sizeof page) == sizeof page)
        memfd_bytes += sizeof page;
}

uint64_t queued_bytes;

/// Opens a pair of sockets ten times a second, and queues 100 kB that nobody reads: about what the kernel takes for it.
__attribute__((noinline)) void queue_some() {
    static int steps;
    int pair[2];
    if (steps++ % 10 != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return;
    static char data[50000];
    for (int i = 0; i < 2; i++) {
        if (send(pair[0], data, sizeof data, MSG_DONTWAIT) == sizeof data)
            queued_bytes += sizeof data;
    }
}

uint64_t huge_bytes;

/// Touches 4 KiB of 2 MiB in a huge page, twice a second.
__attribute__((noinline)) void touch_huge() {
    static int steps;
    if (steps++ % (STEPS / 2) != 0)
        return;
    constexpr size_t HUGE = 2 << 20;
    auto *memory = static_cast<char *>(mmap(nullptr, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    auto *aligned = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(memory) + HUGE - 1) & ~(HUGE - 1));
    madvise(aligned, HUGE, MADV_HUGEPAGE);
    *aligned = 1;
    huge_bytes += HUGE - PAGE;
}

uint64_t file_bytes;

/// Maps a file of 1 GiB with holes, and reads 16 KiB more of it: 1.6 MB a second.
__attribute__((noinline)) void read_file() {
    static char *file;
    static volatile char sum;
    constexpr size_t SIZE = 1 << 30;
    if (file == nullptr) {
        char name[] = "/var/tmp/memleak-grow-XXXXXX";
        int descriptor = mkstemp(name);
        unlink(name);
        if (ftruncate(descriptor, SIZE) != 0)
            abort();
        file = static_cast<char *>(mmap(nullptr, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
        madvise(file, SIZE, MADV_RANDOM);
    }
    for (int i = 0; i < 4 && file_bytes < SIZE; i++) {
        sum += file[file_bytes];
        file_bytes += PAGE;
    }
}

uint64_t stack_bytes;

/// Goes down the stack by 6 MB, once.
__attribute__((noinline)) int descend(int depth) {
    volatile char frame[1024];
    frame[0] = static_cast<char>(depth);
    return depth == 0 ? 0 : descend(depth - 1) + frame[0];
}

__attribute__((noinline)) void recurse_once() {
    if (stack_bytes == 0) {
        volatile int result = descend(5000);
        (void)result;
        stack_bytes = 5000 * 1040;
    }
}

const std::map<std::string, Cause> CAUSES = {
    {"lost", {lose, [] { return lost_bytes; }}},
    {"kept", {remember, [] { return sessions.size() * 1000; }}},
    {"settled", {refresh, [] { return recent.size() * 1000; }}},
    {"pinned", {pin_some, pinned_bytes}},
    {"arenas", {employ, [] { return worker_count * 3999ull * 1008; }}},
    {"peak", {peak_once, [] { return peaks; }}},
    {"threads", {unjoined, [] { return ended_threads * LEFT; }}},
    {"mappings", {map_some, [] { return mapped_bytes; }}},
    {"memfd", {fill_memfd, [] { return memfd_bytes; }}},
    {"sockets", {queue_some, [] { return queued_bytes; }}},
    {"huge", {touch_huge, [] { return huge_bytes; }}},
    {"files", {read_file, [] { return file_bytes; }}},
    {"stack", {recurse_once, [] { return stack_bytes; }}},
};

} // namespace

int main(int count, char **words) {
    int seconds = count > 1 ? atoi(words[1]) : 0;
    std::vector<std::string> names(words + (count > 1 ? 2 : count), words + count);
    timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (int step = 0; step < seconds * STEPS; step++) {
        for (auto &name : names)
            CAUSES.at(name).step();
        if (step % STEPS == STEPS - 1) {
            for (auto &name : names)
                printf("%s %llu\n", name.c_str(), static_cast<unsigned long long>(CAUSES.at(name).held()));
            fflush(stdout);
        }
        next.tv_nsec += 1000000000 / STEPS;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, nullptr);
    }
}
