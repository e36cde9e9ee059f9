// The program of the problem statement: main -> caller -> LeakLib::slowMemoryLeak -> new int[10]; with
// WITH_MALLOC defined, the same through malloc.
//
// usage: leaker BLOCKS MICROSECONDS
//
// Leaks BLOCKS blocks of 40 bytes, MICROSECONDS apart, without end if BLOCKS is 0. At each line on standard
// input it prints how many blocks were leaked so far; it leaks nothing while it answers, and goes
// on after the next line. It ends when standard input does. Built without frame pointers.
#include <cstdlib>
#include <cstdio>
#include <poll.h>
#include <unistd.h>

static volatile unsigned long leaked;

struct LeakLib {
    [[gnu::noinline]] static int *slowMemoryLeak();
};

int *LeakLib::slowMemoryLeak()
{
#ifdef WITH_MALLOC
    int *block = static_cast<int *>(malloc(10 * sizeof(int)));
#else
    int *block = new int[10];
#endif
    block[0] = 1;
    leaked = leaked + 1;
    return block;
}

[[gnu::noinline]] static int caller()
{
    return *LeakLib::slowMemoryLeak() + 1;
}

static bool await_line()
{
    char byte;
    ssize_t got;
    while ((got = read(STDIN_FILENO, &byte, 1)) == 1 && byte != '\n') {
    }
    return got == 1;
}

// Writes without stdio, which would allocate a buffer and free it only after the answer was read.
static void answer()
{
    char text[32];
    int length = snprintf(text, sizeof text, "%lu\n", leaked);

    if (write(STDOUT_FILENO, text, length) != length)
        exit(1);
}

static bool asked()
{
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, 0) > 0 && (input.revents & POLLIN);
}

int main(int argc, char **argv)
{
    unsigned long blocks = argc > 1 ? strtoul(argv[1], nullptr, 10) : 0;
    useconds_t pause = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1000;
    int sum = 0;

    for (;;) {
        if (asked()) {
            if (!await_line())
                return sum == 0;
            answer();
            if (!await_line())
                return sum == 0;
        }
        if (blocks == 0 || leaked < blocks)
            sum += caller();
        usleep(pause);
    }
}
