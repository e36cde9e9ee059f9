// Allocates while exceptions are in flight: in destructors that unwinding runs, in catch blocks, in throws
// within both, in rethrown and stored exceptions, in handlers of a whole function, in filters that are passed.
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include "../handshake.h"
#include "../keep.h"

static volatile int sum;

struct Allocating {
	int size;
	[[gnu::noinline]] ~Allocating()
	{
		LEAK();
		std::string text(size, 'x');
		sum = sum + text.size();
	}
};

struct Throwing {
	[[gnu::noinline]] ~Throwing()
	{
		try {
			Allocating before{50};
			throw std::logic_error("thrown and caught in a destructor, while another one is in flight");
		} catch (const std::exception &error) {
			std::string copy(error.what());
			sum = sum + copy.size();
		}
	}
};

[[gnu::noinline]] static int fall(int depth)
{
	Allocating here{40 + depth};
	Throwing too;
	if (depth == 0)
		throw std::runtime_error(std::string(60, 'y'));
	return fall(depth - 1) + 1;
}

[[gnu::noinline]] static int other_types(int depth)
{
	try {
		return fall(depth) + 1;
	} catch (const std::bad_alloc &) {
		return 0;
	} catch (int number) {
		return number;
	}
}

[[gnu::noinline]] static int rethrow(int depth)
{
	try {
		return other_types(depth) + 1;
	} catch (const std::runtime_error &error) {
		LEAK();
		std::string copy(error.what());
		sum = sum + copy.size();
		throw;
	}
}

struct Whole {
	std::string text;
	[[gnu::noinline]] explicit Whole(int depth)
	try : text(30, 'z') {
		sum = sum + rethrow(depth);
	} catch (...) {
		LEAK();
	}
};

[[gnu::noinline]] static std::exception_ptr store(int depth)
{
	try {
		Whole whole(depth);
	} catch (...) {
		LEAK();
		return std::current_exception();
	}
	return nullptr;
}

[[gnu::noinline]] static int again(const std::exception_ptr &stored)
{
	try {
		std::rethrow_exception(stored);
	} catch (const std::exception &error) {
		std::string copy(error.what());
		try {
			std::throw_with_nested(std::invalid_argument(copy));
		} catch (const std::exception &outer) {
			LEAK();
			return std::string(outer.what()).size();
		}
	}
}

int main()
{
	rendezvous("ready");
	for (int depth = 0; depth < 6; depth++) {
		auto stored = store(depth);
		sum = sum + again(stored);
	}
	rendezvous("done");
	return 0;
}
