// C++'s operators: 100 blocks of each are kept, with distinct sizes; operators that throw, and are caught.
#include "../handshake.h"
#include <cstddef>
#include <new>

#define NOINLINE __attribute__((noinline))

static const size_t large = size_t{4} << 20;
static char *volatile kept;

struct alignas(64) Aligned {
	char bytes[4 << 20];
};

NOINLINE static void by_new()
{
	kept = static_cast<char *>(operator new(large + 1));
	kept = new char[large + 2];
	kept = new (std::nothrow) char[large + 3];
	kept = static_cast<char *>(operator new(large + 4, std::nothrow));
	kept = reinterpret_cast<char *>(new Aligned);
}

NOINLINE static void by_delete()
{
	operator delete(operator new(large + 1));
	operator delete(operator new(large), large);
	operator delete[](operator new[](large + 2));
	operator delete(operator new(large, std::align_val_t{128}), std::align_val_t{128});
	kept = reinterpret_cast<char *>(new Aligned);
	delete reinterpret_cast<Aligned *>(kept);
}

NOINLINE static int by_throwing()
{
	volatile size_t most = size_t{1} << 62;
	int caught = 0;
	for (int round = 0; round < 100; round++) {
		try {
			kept = static_cast<char *>(operator new(most));
		} catch (const std::bad_alloc &) {
			caught++;
		}
		if (!operator new(most, std::nothrow))
			caught++;
	}
	return caught;
}

int main()
{
	int caught = by_throwing();
	rendezvous("ready");
	caught += by_throwing();
	by_new();
	by_delete();
	rendezvous(caught == 400 ? "done" : "not all were caught");
	return 0;
}
