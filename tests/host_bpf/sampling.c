/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The choices of bpf/calls/sampling.h compiled for the host, with random numbers that the caller gives.
 * tests/host/sampling.rs loads this as a shared object.
 */
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

#define __noinline

/* Headers of bpf/ that are replaced by this file. */
#define KERNEL_H
#define STORE_CONFIG_H
#define STORE_MAPS_H

#include "shared.h"

typedef u32 (*next_random)(void *context);

static u32 sampling;
static u64 sampling_interval;
static bool governed;
static const bool filter_sizes = false;
static const u64 min_size, max_size;
static struct distance distance;
static next_random random_from;
static void *random_context;

static u32 bpf_get_prandom_u32(void)
{
	return random_from(random_context);
}

#include "calls/sampling.h"

/* The weights, as they are stored, of calls for `sizes`, made by one thread. */
void host_sample(u32 method, u64 interval, next_random random, void *context, const u64 *sizes, u32 *weights, u64 count)
{
	struct sampler sampler = {};

	sampling = method;
	sampling_interval = interval;
	random_from = random;
	random_context = context;
	for (u64 number = 0; number < count; number++)
		weights[number] = chosen_weight(&sampler, sizes[number]);
}

/*
 * The weights, as they are stored, of calls for `sizes` sampled by bytes, the mean distance being `means[n]` when call
 * n is made.
 */
void host_sample_governed(const u64 *means, next_random random, void *context, const u64 *sizes, u32 *weights, u64 count)
{
	struct sampler sampler = {};

	sampling = SAMPLE_BYTES;
	governed = true;
	random_from = random;
	random_context = context;
	for (u64 number = 0; number < count; number++) {
		distance.mean = means[number];
		weights[number] = chosen_weight(&sampler, sizes[number]);
	}
	governed = false;
}

u64 host_gap(u64 mean, u32 random)
{
	return exponential_gap(mean, random);
}

/* The weight of a chosen block of `size`, with WEIGHT_SHIFT bits behind the point. */
u64 host_weight(u64 size, u64 mean)
{
	return inverse_probability(size, mean);
}

u32 host_store_weight(u64 weight)
{
	return store_weight(weight);
}

u64 host_load_weight(u32 stored)
{
	return load_weight(stored);
}

u64 host_weighted_bytes(u64 size, u64 weight)
{
	return weighted_bytes(size, weight);
}
