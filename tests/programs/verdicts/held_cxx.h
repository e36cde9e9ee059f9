/* Blocks that are held in C++ ways: by containers, smart pointers, and pointers to parts of objects. */
#pragma once
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
#include "kinds.h"

/* An object whose array needs its length, in order to destroy it: new[] puts that in front. */
struct Destroyed {
	uint64_t value[2] = {};
	~Destroyed() { value[0] = 1; }
};

extern "C" NOINLINE Destroyed *held_by_array_cookie()
{
	Destroyed *array = new Destroyed[3];

	array->value[1] = 1;
	return array;
}
static Count set_up_array_cookie()
{
	static Destroyed *volatile table[MOST];

	for (size_t at = 0; at < wanted; at++)
		table[at] = held_by_array_cookie();
	return each(wanted);
}

struct First {
	virtual ~First() = default;
	uint64_t one = 1;
};
struct Second {
	virtual ~Second() = default;
	uint64_t two = 2;
};
struct Both : First, Second {
	uint64_t three = 3;
};

extern "C" NOINLINE Second *held_by_second_base()
{
	Both *both = new Both;

	both->three = 4;
	return both;
}
static Count set_up_second_base()
{
	static Second *volatile table[MOST];

	for (size_t at = 0; at < wanted; at++)
		table[at] = held_by_second_base();
	return each(wanted);
}

/* Containers, which are never destroyed: the program ends by _exit. */
static std::string strings[MOST];
static std::vector<void *> vector;
static std::deque<void *> deque;
static std::list<size_t> linked;
static std::map<size_t, size_t> ordered;
static std::unordered_map<size_t, size_t> hashed;
static std::shared_ptr<uint64_t> shared[MOST];
static std::unique_ptr<uint64_t> unique[MOST];
static std::function<void *()> functions[MOST];

/* Keeps the previous call from being a tail call. */
#define NOT_A_TAIL_CALL() asm volatile("" : : : "memory")

extern "C" NOINLINE void held_by_std_string(std::string &string)
{
	string.assign(SIZE, 'x');
	NOT_A_TAIL_CALL();
}
static Count set_up_std_string()
{
	for (size_t at = 0; at < wanted; at++)
		held_by_std_string(strings[at]);
	return each(wanted);
}

KIND(held_by_std_vector)
static Count set_up_std_vector()
{
	for (size_t at = 0; at < wanted; at++)
		vector.push_back(held_by_std_vector(SIZE));
	return each(wanted);
}

KIND(held_by_std_deque)
static Count set_up_std_deque()
{
	for (size_t at = 0; at < wanted; at++)
		deque.push_back(held_by_std_deque(SIZE));
	return each(wanted);
}

extern "C" NOINLINE void held_by_std_list(size_t at)
{
	linked.push_back(at);
	NOT_A_TAIL_CALL();
}
static Count set_up_std_list()
{
	for (size_t at = 0; at < wanted; at++)
		held_by_std_list(at);
	return each(wanted);
}

extern "C" NOINLINE void held_by_std_map(size_t at)
{
	ordered.emplace(at, at);
	NOT_A_TAIL_CALL();
}
static Count set_up_std_map()
{
	for (size_t at = 0; at < wanted; at++)
		held_by_std_map(at);
	return each(wanted);
}

extern "C" NOINLINE void held_by_std_unordered_map(size_t at)
{
	hashed.emplace(at, at);
	NOT_A_TAIL_CALL();
}
static Count set_up_std_unordered_map()
{
	/* The table itself is not one of its nodes. */
	hashed.reserve(MOST);
	for (size_t at = 0; at < wanted; at++)
		held_by_std_unordered_map(at);
	return each(wanted);
}

extern "C" NOINLINE void held_by_shared_ptr(std::shared_ptr<uint64_t> &pointer)
{
	pointer = std::make_shared<uint64_t>(1);
	NOT_A_TAIL_CALL();
}
static Count set_up_shared_ptr()
{
	for (size_t at = 0; at < wanted; at++)
		held_by_shared_ptr(shared[at]);
	return each(wanted);
}

extern "C" NOINLINE void held_by_unique_ptr(std::unique_ptr<uint64_t> &pointer)
{
	pointer.reset(new uint64_t(1));
	NOT_A_TAIL_CALL();
}
static Count set_up_unique_ptr()
{
	for (size_t at = 0; at < wanted; at++)
		held_by_unique_ptr(unique[at]);
	return each(wanted);
}

KIND(held_by_std_function)
/* The captured values do not fit into the function object, so they are in a separate block. */
static Count set_up_std_function()
{
	for (size_t at = 0; at < wanted; at++) {
		void *block = held_by_std_function(SIZE);
		size_t ballast[4] = {at};

		functions[at] = [=] { return static_cast<void *>(static_cast<char *>(block) + ballast[3]); };
	}
	return each(wanted);
}
