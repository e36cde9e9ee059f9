// Every form of operator new, kept and freed, and failures that are thrown and caught. Each function is one
// site; the test has a row for each. Memory that the C++ library allocates for an exception is a separate site.
#include <new>
#include "../handshake.h"
#include "../keep.h"

#define SITE(name) NOINLINE static void name()

struct alignas(64) Aligned {
	char bytes[192];
};

static volatile size_t huge = size_t{1} << 61;

template <typename T> NOINLINE static T *keep(T *block)
{
	kept = block;
	return block;
}

SITE(new_kept) { keep(new char); }
SITE(new_freed) { delete keep(new long); }
SITE(array_kept) { keep(new int[10]); }
SITE(array_freed) { delete[] keep(new int[11]); }
SITE(nothrow_kept) { keep(new (std::nothrow) int[12]); }
SITE(nothrow_freed) { delete[] keep(new (std::nothrow) int[13]); }
SITE(nothrow_failed) { keep(new (std::nothrow) char[huge]); }
SITE(aligned_kept) { keep(new Aligned); }
SITE(aligned_freed) { delete keep(new Aligned); }
SITE(aligned_array_freed) { delete[] keep(new Aligned[2]); }

SITE(throwing)
{
	try {
		keep(new char[huge]);
		_exit(2);
	} catch (const std::bad_alloc &) {
	}
}

SITE(throwing_aligned)
{
	try {
		keep(new (std::align_val_t{64}) char[huge]);
		_exit(2);
	} catch (const std::bad_alloc &) {
	}
}

int main()
{
	rendezvous("ready");
	new_kept();
	new_freed();
	array_kept();
	array_freed();
	nothrow_kept();
	nothrow_freed();
	nothrow_failed();
	aligned_kept();
	aligned_freed();
	aligned_array_freed();
	throwing();
	throwing_aligned();
	rendezvous("done");
	return 0;
}
