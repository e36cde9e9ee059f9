/* Blocks that are held, but not by a word that is a pointer to them: in the kernel, or in another form. */
#pragma once
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include "held.h"
#include "kinds.h"

KIND(kernel_epoll_data)
static Count set_up_epoll_data()
{
	int queue = epoll_create1(EPOLL_CLOEXEC);
	int event_source = eventfd(0, EFD_CLOEXEC);

	for (size_t at = 0; at < wanted; at++) {
		epoll_event event = {};

		event.events = EPOLLIN;
		event.data.ptr = kernel_epoll_data(SIZE);
		if (epoll_ctl(queue, EPOLL_CTL_ADD, dup(event_source), &event) != 0)
			fail("epoll_ctl");
	}
	return each(wanted);
}

/* Sets timers that will not expire, each with a pointer that its expiry would return. */
static Count set_timers(Allocate *allocate, int notify)
{
	for (size_t at = 0; at < wanted; at++) {
		sigevent event = {};
		itimerspec time = {};
		timer_t timer;

		event.sigev_notify = notify;
		event.sigev_signo = SIGRTMIN + 1;
		event.sigev_value.sival_ptr = allocate(SIZE);
		time.it_value.tv_sec = 1000000;
		if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || timer_settime(timer, 0, &time, nullptr) != 0)
			fail("timer_create");
	}
	return each(wanted);
}

KIND(kernel_timer)
static Count set_up_timer()
{
	return set_timers(kernel_timer, SIGEV_SIGNAL);
}

KIND(kernel_timer_without_signal)
static Count set_up_timer_without_signal()
{
	return set_timers(kernel_timer_without_signal, SIGEV_NONE);
}

KIND(kernel_pending_signal)
/* Queued for a signal that every thread blocks: main has blocked it before it started any. */
static Count set_up_pending_signal()
{
	for (size_t at = 0; at < wanted; at++) {
		sigval value;

		value.sival_ptr = kernel_pending_signal(SIZE);
		if (sigqueue(getpid(), SIGRTMIN + 2, value) != 0)
			fail("sigqueue");
	}
	return each(wanted);
}

/* Writes pointers to where they can be read from again: in one piece, as a socket has room for few small ones. */
static Count write_pointers(int file, Allocate *allocate)
{
	void *volatile table[MOST];
	ssize_t size = wanted * sizeof(*table);

	fill(table, wanted, allocate);
	if (write(file, const_cast<void **>(table), size) != size)
		fail("write");
	return each(wanted);
}

KIND(kernel_pipe)
static Count set_up_pipe()
{
	int ends[2];

	if (pipe(ends) != 0)
		fail("pipe");
	return write_pointers(ends[1], kernel_pipe);
}

KIND(kernel_socket)
static Count set_up_socket()
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
		fail("socketpair");
	return write_pointers(ends[1], kernel_socket);
}

KIND(kernel_file)
static Count set_up_file()
{
	return write_pointers(nameless_file(), kernel_file);
}

KIND(kernel_signal_stack)
/* Known only to the kernel, until the thread gets a signal. */
static Count set_up_kernel_signal_stack()
{
	constexpr size_t threads = 4;

	for (size_t at = 0; at < threads; at++)
		start_thread(
			[](void *) -> void * {
				stack_t stack = {};

				stack.ss_sp = kernel_signal_stack(STACK);
				stack.ss_size = STACK;
				if (sigaltstack(&stack, nullptr) != 0)
					fail("sigaltstack");
				memset(&stack, 0, sizeof(stack));
				/* Otherwise the compiler removes the memset, as nothing reads the result. */
				asm volatile("" : : "r"(&stack) : "memory");
				settle();
				wait_by_futex();
				return nullptr;
			},
			nullptr);
	return each(threads);
}

/* Returns a pointer as a number, which is never stored anywhere. */
static uint64_t number(Allocate *allocate)
{
	return reinterpret_cast<uint64_t>(allocate(SIZE));
}

/* Any constant that does not turn one address into another. */
static volatile uint64_t secret = 0x9e3779b97f4a7c15;

KIND(hidden_by_high_tag)
static Count set_up_high_tag()
{
	static volatile uint64_t table[MOST];

	for (size_t at = 0; at < wanted; at++)
		table[at] = number(hidden_by_high_tag) | 0xa5ull << 56;
	return each(wanted);
}

KIND(hidden_by_short_tag)
/* In the upper 16 bits, where programs that swap pointers atomically keep a counter. */
static Count set_up_short_tag()
{
	static volatile uint64_t table[MOST];

	for (size_t at = 0; at < wanted; at++)
		table[at] = number(hidden_by_short_tag) | (at + 1) << 48;
	return each(wanted);
}

KIND(hidden_in_xor_list)
/* A ring, so that no block contains a neighbour's plain address. */
static Count set_up_xor_list()
{
	static volatile uint64_t entry[2];
	uint64_t blocks[MOST];

	for (size_t at = 0; at < wanted; at++)
		blocks[at] = number(hidden_in_xor_list);
	for (size_t at = 0; at < wanted; at++)
		*reinterpret_cast<uint64_t *>(blocks[at]) = blocks[(at + 1) % wanted] ^ blocks[(at + wanted - 1) % wanted];
	entry[0] = blocks[0] ^ secret;
	entry[1] = blocks[1] ^ secret;
	return each(wanted);
}

KIND(hidden_by_compression)
/* In units of 8 bytes from a base, as in a managed heap. */
static Count set_up_compression()
{
	static volatile uint32_t table[MOST];
	static volatile uint64_t base;

	for (size_t at = 0; at < wanted; at++) {
		uint64_t block = number(hidden_by_compression);

		if (at == 0)
			base = block & -(1ull << 32);
		table[at] = (block - base) >> 3;
	}
	return each(wanted);
}

KIND(hidden_by_self_relation)
/* As the distance from the place where it is stored, as pointers in shared memory are. */
static Count set_up_self_relation()
{
	static volatile uint64_t table[MOST];

	for (size_t at = 0; at < wanted; at++)
		table[at] = number(hidden_by_self_relation) - reinterpret_cast<uint64_t>(&table[at]);
	return each(wanted);
}

KIND(hidden_by_base64)
static Count set_up_base64()
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	static volatile char text[MOST][12];

	for (size_t at = 0; at < wanted; at++) {
		uint64_t block = number(hidden_by_base64);

		for (size_t digit = 0; digit < 11; digit++)
			text[at][digit] = digits[block >> 6 * digit & 63];
	}
	return each(wanted);
}

static uint64_t rotate(uint64_t word, int bits)
{
	return word << bits | word >> (64 - bits);
}

KIND(hidden_by_secret)
/* In the way in which the C library hides pointers to functions. */
static Count set_up_secret()
{
	static volatile uint64_t table[MOST];

	for (size_t at = 0; at < wanted; at++)
		table[at] = rotate(number(hidden_by_secret) ^ secret, 17);
	return each(wanted);
}

KIND(hidden_by_swapped_bytes)
static Count set_up_swapped_bytes()
{
	static volatile uint64_t table[MOST];

	for (size_t at = 0; at < wanted; at++)
		table[at] = __builtin_bswap64(number(hidden_by_swapped_bytes));
	return each(wanted);
}

KIND(hidden_by_swapped_halves)
static Count set_up_swapped_halves()
{
	static volatile uint64_t table[MOST];

	for (size_t at = 0; at < wanted; at++)
		table[at] = rotate(number(hidden_by_swapped_halves), 32);
	return each(wanted);
}

KIND(hidden_in_two_parts)
static Count set_up_two_parts()
{
	static volatile uint32_t low[MOST], high[MOST];

	for (size_t at = 0; at < wanted; at++) {
		uint64_t block = number(hidden_in_two_parts);

		low[at] = block;
		high[at] = block >> 32;
	}
	return each(wanted);
}

/* Stores whole pointers at addresses that are not aligned. */
template <size_t offset> static void fill_unaligned(char (*table)[16], Allocate *allocate)
{
	for (size_t at = 0; at < wanted; at++) {
		void *block = allocate(SIZE);

		memcpy(table[at] + offset, &block, sizeof(block));
	}
	asm volatile("" : : "r"(table) : "memory");
}

KIND(hidden_at_odd_address)
static Count set_up_odd_address()
{
	alignas(16) static char table[MOST][16];

	fill_unaligned<1>(table, hidden_at_odd_address);
	return each(wanted);
}

KIND(hidden_at_half_word)
/* As in a table of epoll_event, which is packed. */
static Count set_up_half_word()
{
	alignas(16) static char table[MOST][16];

	fill_unaligned<4>(table, hidden_at_half_word);
	return each(wanted);
}
