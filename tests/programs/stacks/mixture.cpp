// Uses of the stack in C++ programs, all in one: exceptions through several frames, callbacks of qsort and std::sort,
// threads, recursion, containers, streams, stack frames of dynamic size. Deterministic except for the order of threads.
// Some blocks stay.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include <alloca.h>
#include <cstdlib>
#include <cstring>
#include "../handshake.h"

static void *volatile last;

struct Tree {
	std::unique_ptr<Tree> left, right;
	std::string label;
};

[[gnu::noinline]] static std::unique_ptr<Tree> grow(int depth)
{
	auto tree = std::make_unique<Tree>();
	tree->label = "a label that is too long for a small string " + std::to_string(depth);
	if (depth > 0) {
		tree->left = grow(depth - 1);
		if (depth % 2)
			tree->right = grow(depth - 2);
	}
	return tree;
}

[[gnu::noinline]] static int fall(int depth)
{
	std::string here(40 + depth, 'x');
	if (depth == 0)
		throw std::runtime_error(here);
	return fall(depth - 1) + static_cast<int>(here.size());
}

[[gnu::noinline]] static int catch_all(int depth)
{
	try {
		return fall(depth);
	} catch (const std::exception &error) {
		return std::string(error.what()).size();
	}
}

static int compare(const void *a, const void *b)
{
	std::string one(50, 'a' + *static_cast<const char *>(a) % 20);
	void *volatile block = std::malloc(one.size());
	std::free(block);
	return *static_cast<const char *>(a) - *static_cast<const char *>(b);
}

[[gnu::noinline]] static int on_the_stack(int size)
{
	char *text = static_cast<char *>(alloca(size));
	std::memset(text, 'y', size);
	std::string copy(text, size);
	return copy[size / 2];
}

[[gnu::noinline]] static int round_of_work(int seed)
{
	char letters[40];
	for (int at = 0; at < 40; at++)
		letters[at] = (seed * 31 + at * 17) % 101;
	std::qsort(letters, sizeof(letters), 1, compare);

	std::vector<std::string> words;
	for (int word = 0; word < 30; word++)
		words.push_back("some word of more than sixteen bytes " + std::to_string(seed * word % 23));
	std::sort(words.begin(), words.end());
	std::map<std::string, std::function<int()>> calls;
	for (const std::string &word : words)
		calls[word] = [word, words] { return static_cast<int>(word.size() + words.size()); };
	int sum = catch_all(seed % 7) + on_the_stack(100 + seed % 400);
	for (auto &[name, call] : calls)
		sum += call();
	std::ostringstream stream;
	stream << "sum " << sum << ' ' << 1.5 * seed;
	if (std::regex_search(stream.str(), std::regex("s[tu]m ([0-9]+)")))
		last = std::malloc(seed % 64 + 1);
	return sum + static_cast<int>(grow(seed % 6)->label.size());
}

[[gnu::noinline]] static void work(int from, int rounds)
{
	volatile int sum = 0;
	for (int round = 0; round < rounds; round++)
		sum = sum + round_of_work(from + round);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? std::atoi(argv[1]) : 1;

	rendezvous("ready");
	std::vector<std::thread> threads;
	for (int thread = 0; thread < 4; thread++)
		threads.emplace_back(work, thread * 1000, rounds);
	work(5000, rounds);
	for (std::thread &thread : threads)
		thread.join();
	rendezvous("done");
	return 0;
}
