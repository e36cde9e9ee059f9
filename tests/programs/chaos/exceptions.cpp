// Throws and catches exceptions through many frames: out of constructors, from a failing operator new, past destructors
// that free, through frames of the C library, in several threads at once and between them, nested and rethrown.
#include <algorithm>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include "rounds.h"

static volatile size_t huge = size_t{1} << 61;
static void *volatile kept;

struct Guard {
	std::string text;
	std::unique_ptr<char[]> block;
	explicit Guard(unsigned depth) : text(20 + depth, 'g'), block(new char[100 + 10 * depth]) { block[0] = 1; }
	[[gnu::noinline]] ~Guard() { text.append(block[0], 'x'); }
};

// Throws the exception, at the innermost frame.
[[noreturn]] [[gnu::noinline]] static void fail(unsigned kind)
{
	switch (kind % 5) {
	case 0:
		kept = new char[huge];
		break;
	case 1:
		std::vector<int>().reserve(huge);
		break;
	case 2:
		std::string().at(kind);
		break;
	case 3:
		throw kind;
	}
	throw std::runtime_error(std::string(200, 'r'));
}

[[gnu::noinline]] static unsigned descend(unsigned depth, unsigned kind)
{
	Guard guard(depth);

	if (depth == 0)
		fail(kind);
	// Some frames inspect the exception that passes, and some add to it.
	try {
		return descend(depth - 1, kind) + guard.text.size();
	} catch (const std::bad_alloc &) {
		if (depth % 7 == 0)
			std::throw_with_nested(std::logic_error("of an allocation"));
		throw;
	} catch (const std::runtime_error &error) {
		if (depth % 11 == 0)
			throw std::runtime_error(error.what() + std::to_string(depth));
		throw;
	}
}

static std::string description(std::exception_ptr error)
{
	try {
		std::rethrow_exception(error);
	} catch (const std::exception &caught) {
		std::string text(caught.what());
		try {
			std::rethrow_if_nested(caught);
		} catch (...) {
			text += description(std::current_exception());
		}
		return text;
	} catch (unsigned number) {
		return std::to_string(number);
	}
}

[[gnu::noinline]] static std::string through_frames(unsigned depth, unsigned kind)
{
	try {
		return std::to_string(descend(depth, kind));
	} catch (...) {
		return description(std::current_exception());
	}
}

// Construction of every fifth one fails: the previous ones are destroyed, and their memory is freed.
struct Fifth {
	static thread_local unsigned made;
	std::string text;
	Fifth() : text(50, 'f')
	{
		if (++made % 5 == 0)
			throw made;
	}
};
thread_local unsigned Fifth::made;

[[gnu::noinline]] static std::string from_constructors()
{
	Fifth::made = 0;
	try {
		std::unique_ptr<Fifth[]> all(new Fifth[8]);
		return "made";
	} catch (unsigned made) {
		return std::to_string(made);
	}
}

static int compare_or_throw(const void *left, const void *right)
{
	int a = *static_cast<const int *>(left), b = *static_cast<const int *>(right);

	if (a + b > 900)
		throw std::to_string(a + b);
	return a - b;
}

// Through qsort, which allocates, and which the exception leaves midway. (Its allocation is lost, traced or not.)
[[gnu::noinline]] static std::string through_the_c_library()
{
	int numbers[40];

	for (int at = 0; at < 40; at++)
		numbers[at] = at * 37 % 500;
	try {
		std::qsort(numbers, 40, sizeof(int), compare_or_throw);
		return "sorted";
	} catch (const std::string &sum) {
		return sum;
	}
}

static thread_local unsigned handled;

[[gnu::noinline]] static std::string by_the_handler()
{
	std::set_new_handler([] {
		if (++handled % 3 == 0)
			throw std::bad_alloc();
	});
	handled = 0;
	try {
		kept = new char[huge];
	} catch (const std::bad_alloc &) {
	}
	kept = new (std::nothrow) char[huge];
	return std::to_string(handled) + (kept ? "some" : "none");
}

static std::string everything(unsigned seed)
{
	std::map<unsigned, std::string> said;

	for (unsigned number = 0; number < 10; number++)
		said[number] = through_frames(5 + (seed + number) * 7 % 60, seed + number);
	std::string text = from_constructors() + through_the_c_library() + by_the_handler();
	for (const auto &[number, line] : said)
		text += line;
	return text;
}

// Receives an exception that another thread threw.
static std::string from_another_thread(unsigned seed)
{
	std::future<unsigned> future = std::async(std::launch::async, [=] { return descend(30, seed); });

	try {
		return std::to_string(future.get());
	} catch (...) {
		return description(std::current_exception());
	}
}

int main(int, char **argv)
{
	struct rounds rounds = rounds_of(argv);

	while (goes_on(&rounds)) {
		unsigned seed = static_cast<unsigned>(rounds.done);
		std::string first, second;
		std::thread one([&] { first = everything(seed); });
		std::thread two([&] { second = everything(seed + 3); });

		add_text(&rounds, from_another_thread(seed).c_str());
		one.join();
		two.join();
		add_text(&rounds, (first + second).c_str());
		end_round(&rounds);
	}
	return DONE;
}
