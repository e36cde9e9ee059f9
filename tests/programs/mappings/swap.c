/*
 * Two libraries in turn at the same address, under allocation load.
 *
 * usage: swap LIBRARY LIBRARY ROUNDS. Each round loads one of them, allocates through it,
 *     main -> round_of -> call_library -> outer_X -> inner_X -> malloc,
 * and unloads it; every 51st stays for a while. Another thread allocates all the time,
 *     thread_main -> allocate -> malloc,
 * and during the rounds a third one in the library that is loaded:
 *     visitor_main -> call_library -> outer_X -> inner_X -> malloc.
 * Says "ready", and after the rounds in how many of them the library was at the first one's address, and how often
 * the third thread was in one. Then it loads the first library and the second, says "done" and allocates at each line,
 * until it gets one that is not empty.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "../handshake.h"
#include "../keep.h"

#define BLOCKS 20

static volatile int stop;

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
/* Function that the third thread calls; changes only behind the gate. */
static int (*visited)(void *);
static long visits;

NOINLINE static void allocate(void)
{
	void *volatile block = malloc(32);

	free(block);
}

static void *thread_main(void *unused)
{
	while (!stop)
		allocate();
	return unused;
}

/* Returns an address in itself: a stack consists of these if the size of a frame is mistaken. */
NOINLINE static void *decoy(void)
{
	void *volatile here = __builtin_extract_return_addr(__builtin_return_address(0));

	return here;
}

NOINLINE static void *in_decoy(void)
{
	void *volatile here = decoy();

	return here;
}

NOINLINE static int call_library(int (*outer)(void *), void *garbage)
{
	return outer(garbage) + 1;
}

static void let_visit(int (*entry)(void *))
{
	pthread_mutex_lock(&gate);
	visited = entry;
	pthread_mutex_unlock(&gate);
}

static void *visitor_main(void *unused)
{
	while (!stop) {
		pthread_mutex_lock(&gate);
		if (visited) {
			call_library(visited, in_decoy());
			visits++;
		}
		pthread_mutex_unlock(&gate);
		sched_yield();
	}
	return unused;
}

/* Says "done" and waits for a line; returns whether it is empty. */
static int next_line(void)
{
	char byte = 0, first = 0;

	say("done");
	while (byte != '\n') {
		if (read(STDIN_FILENO, &byte, 1) != 1)
			_exit(0);
		if (!first)
			first = byte;
	}
	return first == '\n';
}

static void pause_for(long milliseconds)
{
	struct timespec time = { 0, milliseconds * 1000000 };

	nanosleep(&time, NULL);
}

/* Loads the library, allocates `blocks` times in it, and again for each line, unloads it. */
NOINLINE static unsigned long round_of(const char *path, int blocks, int patient, int lines)
{
	void *library = dlopen(path, RTLD_NOW);
	int (**entry)(void *) = library ? dlsym(library, "entry") : NULL;
	struct link_map *map;
	unsigned long address;

	if (!entry || dlinfo(library, RTLD_DI_LINKMAP, &map))
		_exit(1);
	address = map->l_addr;
	if (!lines)
		let_visit(*entry);
	for (int block = 0; block < blocks; block++) {
		call_library(*entry, in_decoy());
		if (patient)
			pause_for(10);
	}
	while (lines && next_line())
		call_library(*entry, in_decoy());
	let_visit(NULL);
	dlclose(library);
	return address;
}

int main(int argc, char **argv)
{
	unsigned long first = 0;
	long same = 0, rounds = argc > 3 ? atol(argv[3]) : 0;
	pthread_t thread, visitor;
	char text[64];

	if (argc < 4 || pthread_create(&thread, NULL, thread_main, NULL) ||
	    pthread_create(&visitor, NULL, visitor_main, NULL))
		return 1;
	/* Makes the loader do its one-time initialization. */
	round_of(argv[1], BLOCKS, 0, 0);
	round_of(argv[2], BLOCKS, 0, 0);
	rendezvous("ready");
	visits = 0;
	for (long number = 0; number < rounds; number++) {
		unsigned long address = round_of(argv[1 + number % 2], BLOCKS, number % 51 == 0, 0);

		if (!first)
			first = address;
		same += address == first;
	}
	snprintf(text, sizeof text, "%ld", same);
	say(text);
	pthread_mutex_lock(&gate);
	snprintf(text, sizeof text, "%ld", visits);
	pthread_mutex_unlock(&gate);
	say(text);
	round_of(argv[1], 0, 0, 1);
	round_of(argv[2], 0, 0, 1);
	rendezvous("done");
	stop = 1;
	pthread_join(thread, NULL);
	pthread_join(visitor, NULL);
	return 0;
}
