// A stack with one of everything: a callback from libc, a frame that realigns its stack around an alloca, a
// signal handler on an alternate stack, a frame of over 64 KiB, recursion.
//
// Prints pc, stack pointer and frame pointer as of the return of capture(), then waits for the end of
// standard input, with that stack still in place.
#include <alloca.h>
#include <immintrin.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

unsigned long registers[3];
void capture(void);
asm(".pushsection .text\n"
    "capture:\n"
    ".cfi_startproc\n"
    "mov (%rsp), %rax\n"
    "mov %rax, registers(%rip)\n"
    "lea 8(%rsp), %rax\n"
    "mov %rax, registers+8(%rip)\n"
    "mov %rbp, registers+16(%rip)\n"
    "ret\n"
    ".cfi_endproc\n"
    ".popsection\n");

static volatile int sink;

__attribute__((noinline)) static int wait_here(void)
{
    char byte;

    capture();
    dprintf(STDOUT_FILENO, "%lx %lx %lx\n", registers[0], registers[1], registers[2]);
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    return sink;
}

__attribute__((noinline)) static int recurse(int depth)
{
    if (depth > 0)
        return recurse(depth - 1) + sink;
    return wait_here() + sink;
}

__attribute__((noinline)) static int large_frame(void)
{
    volatile char room[100000];

    room[sink] = 1;
    return recurse(20) + room[sink];
}

static void handler(int signal)
{
    sink = large_frame() + signal - SIGUSR1;
}

__attribute__((noinline)) static int realigned(int size)
{
    char *room = alloca(size);
    __m256 vector[2] __attribute__((aligned(64)));

    memset(room, 1, size);
    memset(vector, 0, sizeof vector);
    // Uses the vector: otherwise gcc 14 knows its contents, and realigns nothing.
    asm volatile("" : : "r"(vector) : "memory");
    sink = (int)((unsigned long)vector & 63);
    raise(SIGUSR1);
    return room[size - 1] + (int)_mm256_cvtss_f32(vector[sink & 1]);
}

static int compare(const void *a, const void *b)
{
    static int done;

    if (!done++)
        sink += realigned(100 + sink) - 1;
    return *(const int *)a - *(const int *)b;
}

int main(void)
{
    int numbers[] = {3, 1, 2};
    stack_t stack = {.ss_size = 512 * 1024};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};

    sink = 0;
    stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    qsort(numbers, 3, sizeof numbers[0], compare);
    return numbers[0] + sink;
}
