/* Calls Rust functions (`without_tables.rs`). Compile it with frame pointers. */
#include "../handshake.h"
#include "../keep.h"

size_t leaks_in_rust(size_t number);

NOINLINE static size_t request(size_t number)
{
	return leaks_in_rust(number) + number;
}

int main(void)
{
	rendezvous("ready");
	kept = (void *)request(3);
	LEAK();
	rendezvous("done");
	return 0;
}
