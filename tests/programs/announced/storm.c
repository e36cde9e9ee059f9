/*
 * All functions at once, from four threads at a time that come and go, over blocks that they share; the contents of
 * blocks are checked. Argument: rounds. Says "done BYTES", the bytes requested in all.
 */
#include "../handshake.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PLACES 4096
#define THREADS 4
#define CALLS 20000

struct place {
	pthread_mutex_t lock;
	unsigned char *block;
	size_t size;
	unsigned char mark;
};

static struct place places[PLACES];
static atomic_ullong asked_for;

static void fail(const char *what)
{
	say(what);
	_exit(1);
}

static uint64_t next(uint64_t *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random;
}

/* Marks the first and the last bytes, or checks their marks. */
static void mark(struct place *place)
{
	size_t marked = place->size < 16 ? place->size : 16;

	memset(place->block, place->mark, marked);
	memset(place->block + place->size - marked, place->mark, marked);
}

static void find(const struct place *place)
{
	for (size_t at = 0; at < place->size && at < 16; at++)
		if (place->block[at] != place->mark || place->block[place->size - 1 - at] != place->mark)
			fail("a block was changed");
}

static size_t allocate(struct place *place, size_t size, unsigned how)
{
	void *block = NULL;

	switch (how) {
	case 0:
		size = size / 8 * 8;
		block = calloc(size / 8, 8);
		break;
	case 1:
		if (posix_memalign(&block, 64, size))
			fail("posix_memalign");
		break;
	case 2:
		block = aligned_alloc(4096, size);
		break;
	case 3:
		block = memalign(256, size);
		break;
	case 4:
		block = reallocarray(NULL, size, 1);
		break;
	default:
		block = malloc(size);
	}
	if (!block)
		fail("no memory");
	if (how == 0)
		for (size_t at = 0; at < size; at += 64)
			if (((char *)block)[at])
				fail("calloc gives what is not zero");
	place->block = block;
	return size;
}

static void *work(void *argument)
{
	uint64_t random = ((uintptr_t)argument + 1) * 0x9e3779b97f4a7c15;
	unsigned long long bytes = 0;

	for (int call = 0; call < CALLS; call++) {
		uint64_t word = next(&random);
		struct place *place = &places[word % PLACES];
		size_t size = 8 + ((word >> 20) % 100 ? (word >> 30) % 3000 : (word >> 30) % 3000000);

		pthread_mutex_lock(&place->lock);
		if (place->block)
			find(place);
		if ((word >> 12) % 8 == 7) {
			place->block = realloc(place->block, size);
		} else {
			free(place->block);
			size = allocate(place, size, (word >> 12) % 8);
		}
		bytes += size;
		place->size = size;
		place->mark = word >> 50;
		mark(place);
		pthread_mutex_unlock(&place->lock);
	}
	atomic_fetch_add(&asked_for, bytes);
	return NULL;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	char line[64];

	for (int place = 0; place < PLACES; place++)
		pthread_mutex_init(&places[place].lock, NULL);
	rendezvous("ready");
	for (int round = 0; round < rounds; round++) {
		pthread_t threads[THREADS];

		for (uintptr_t thread = 0; thread < THREADS; thread++)
			pthread_create(&threads[thread], NULL, work, (void *)(round * THREADS + thread));
		for (int thread = 0; thread < THREADS; thread++)
			pthread_join(threads[thread], NULL);
	}
	for (int place = 0; place < PLACES; place++) {
		free(places[place].block);
		places[place].block = NULL;
	}
	snprintf(line, sizeof(line), "done %llu", (unsigned long long)asked_for);
	rendezvous(line);
	return 0;
}
