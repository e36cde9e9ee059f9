/* Blocks that a test program allocates where the compiler can neither remove nor tail-call it. */
#pragma once
#include <stdlib.h>

static void *volatile kept;

#define NOINLINE __attribute__((noipa))

/* Leaks 16 bytes from the function that this is written in. */
#define LEAK() (kept = malloc(16), *(volatile char *)kept = 1)
