// Every form of operator new and operator delete, with blocks kept and freed: each function here is one site. Between
// them, forms that throw, in one thread after another, as many as the argument says.
#include <csetjmp>
#include <pthread.h>
#include <new>
#include <thread>
#include <vector>
#include "../handshake.h"
#include "../keep.h"

#define SITE(name) NOINLINE static void name()

static volatile size_t huge = size_t{1} << 61;
constexpr std::align_val_t LINE{64};

NOINLINE static void *keep(void *block)
{
	kept = block;
	return block;
}

SITE(new_kept) { keep(operator new(101)); }
SITE(new_freed) { operator delete(keep(operator new(102))); }
SITE(new_sized) { operator delete(keep(operator new(103)), 103); }
SITE(array_kept) { keep(operator new[](104)); }
SITE(array_freed) { operator delete[](keep(operator new[](105))); }
SITE(array_sized) { operator delete[](keep(operator new[](106)), 106); }
SITE(nothrow_kept) { keep(operator new(107, std::nothrow)); }
SITE(nothrow_freed) { operator delete(keep(operator new(108, std::nothrow)), std::nothrow); }
SITE(nothrow_array_freed) { operator delete[](keep(operator new[](109, std::nothrow)), std::nothrow); }
SITE(aligned_kept) { keep(operator new(128, LINE)); }
SITE(aligned_freed) { operator delete(keep(operator new(192, LINE)), LINE); }
SITE(aligned_sized) { operator delete(keep(operator new(256, LINE)), 256, LINE); }
SITE(aligned_array_freed) { operator delete[](keep(operator new[](320, LINE)), LINE); }
SITE(aligned_array_sized) { operator delete[](keep(operator new[](384, LINE)), 384, LINE); }
SITE(aligned_nothrow_freed) { operator delete(keep(operator new(448, LINE, std::nothrow)), LINE, std::nothrow); }
SITE(large_freed) { operator delete(keep(operator new(5 << 20))); }

template <typename Form> NOINLINE static void throws(Form form)
{
	try {
		keep(form());
		_exit(2);
	} catch (const std::bad_alloc &) {
	}
}

static thread_local jmp_buf back;
static thread_local bool jumps;

static void handler()
{
	if (jumps)
		longjmp(back, 1);
	throw std::bad_alloc();
}

SITE(round_of_failures)
{
	throws([] { return operator new(huge); });
	throws([] { return operator new[](huge); });
	throws([] { return operator new(huge, LINE); });
	throws([] { return operator new[](huge, LINE); });
	if (operator new(huge, std::nothrow) || operator new(huge, LINE, std::nothrow))
		_exit(2);
	jumps = true;
	if (setjmp(back) == 0) {
		keep(operator new(huge));
		_exit(2);
	}
	jumps = false;
	operator delete(operator new(24));
}

NOINLINE static void allocate_and_throw()
{
	operator delete(operator new(32));
	throw 1;
}

static void *allocate_until_cancelled(void *)
{
	for (;;) {
		void *block = operator new(16);

		operator delete(block);
		try {
			allocate_and_throw();
		} catch (int) {
		}
		pthread_testcancel();
	}
}

static void fail_often(int rounds)
{
	std::vector<std::thread> threads;

	for (int round = 0; round < rounds; round += 100) {
		pthread_t thread;

		if (pthread_create(&thread, nullptr, allocate_until_cancelled, nullptr) || pthread_cancel(thread) ||
		    pthread_join(thread, nullptr))
			_exit(2);
	}

	for (int number = 0; number < 3; number++)
		threads.emplace_back([=] {
			for (int round = 0; round < rounds; round++)
				round_of_failures();
		});
	for (std::thread &thread : threads)
		thread.join();
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 0;

	std::set_new_handler(handler);
	rendezvous("ready");
	if (rounds)
		fail_often(rounds);
	if (rounds)
		rendezvous("failed often");
	new_kept();
	new_freed();
	new_sized();
	array_kept();
	array_freed();
	array_sized();
	nothrow_kept();
	nothrow_freed();
	nothrow_array_freed();
	aligned_kept();
	aligned_freed();
	aligned_sized();
	aligned_array_freed();
	aligned_array_sized();
	aligned_nothrow_freed();
	large_freed();
	rendezvous("done");
	return 0;
}
