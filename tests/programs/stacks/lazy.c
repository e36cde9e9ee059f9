/* Calls a library through PLT entries that are not bound yet: main -> first_call -> leak_in_library. */
#include "../handshake.h"
#include "../keep.h"

int leak_in_library(void);
int chosen(void);

NOINLINE static int first_call(void)
{
	return leak_in_library() + 1;
}

NOINLINE static int first_choice(void)
{
	return chosen() + 1;
}

int main(void)
{
	volatile int sum = 0;

	rendezvous("ready");
	sum += first_call();
	sum += first_choice();
	rendezvous("done");
	return 0;
}
