/* Keeps blocks that a test program allocates, so that the compiler can neither remove nor tail-call the allocation. */
#pragma once
#include <stdlib.h>

static void *volatile kept;

#define NOINLINE __attribute__((noipa))

/* Leaks 16 bytes from the function in which it is used. */
#define LEAK() (kept = malloc(16), *(volatile char *)kept = 1)
