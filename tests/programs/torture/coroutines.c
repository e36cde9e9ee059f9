/*
 * Three coroutines on separate stacks take turns: each allocates at every depth of its recursion and, from
 * there, continues the next.
 */
#include <ucontext.h>
#include "../handshake.h"
#include "../keep.h"

#define COROUTINES 3

static char stacks[COROUTINES][1 << 16];
static ucontext_t contexts[COROUTINES], back;

NOINLINE static int dive(int self, int depth)
{
	LEAK();
	swapcontext(&contexts[self], &contexts[(self + 1) % COROUTINES]);
	LEAK();
	return depth > 1 ? dive(self, depth - 1) + 1 : 1;
}

static void coroutine(int self)
{
	kept = (void *)(long)dive(self, 4 + self);
	LEAK();
}

int main(void)
{
	for (int self = 0; self < COROUTINES; self++) {
		getcontext(&contexts[self]);
		contexts[self].uc_stack.ss_sp = stacks[self];
		contexts[self].uc_stack.ss_size = sizeof(stacks[self]);
		contexts[self].uc_link = &back;
		makecontext(&contexts[self], (void (*)(void))coroutine, 1, self);
	}
	rendezvous("ready");
	/* The first one that ends comes back here; the others stay where they are. */
	swapcontext(&back, &contexts[0]);
	rendezvous("done");
	return 0;
}
