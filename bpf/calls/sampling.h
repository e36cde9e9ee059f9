/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sampling: the choice of calls to record, and the weight of each recorded block.
 *
 * A block's weight is the inverse of the probability with which its call was chosen, so that sums of weights are
 * unbiased estimates. A call is chosen at its entry and independently of its stack. Each thread has its own sampler: a
 * thread cannot preempt itself, and choices of different threads are independent.
 *
 * Numbers are fixed-point, as BPF has no floating point. A weight is stored in 32 bits as an IEEE 754 single, and every
 * sum is computed from the stored form, so that a free subtracts exactly what its allocation added. Also compiles for
 * the host.
 */
#pragma once

#include "calls/thread.h"
#include "kernel.h"
#include "seam.h"
#include "shared.h"
#include "store/store_config.h"
#include "store/store_maps.h"

/* Fraction bits of a logarithm and of an exponential. */
#define LOG_BITS 26
#define EXP_BITS 31

static __always_inline struct wide multiply(u64 a, u64 b)
{
	u64 low = (a & 0xffffffff) * (b & 0xffffffff);
	u64 middle = (a >> 32) * (b & 0xffffffff) + (low >> 32);
	u64 other = (a & 0xffffffff) * (b >> 32) + (middle & 0xffffffff);

	return (struct wide){
		.low = other << 32 | (low & 0xffffffff),
		.high = (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32),
	};
}

/* Returns a * b / 2^shift; saturates. `shift` is a constant from 1 to 63. */
static __always_inline u64 multiply_shifted(u64 a, u64 b, u32 shift)
{
	struct wide product = multiply(a, b);

	return product.high >> shift ? ~0ULL : product.high << (64 - shift) | product.low >> shift;
}

/* Returns the position of the highest bit of `number`, which is not 0. */
static __always_inline u64 highest_bit(u64 number)
{
	u64 place = 0;

#pragma unroll
	for (u32 step = 32; step; step >>= 1) {
		u64 above = number >> place >> step;
		u64 is_above = (above | -above) >> 63;

		OPAQUE(is_above);
		place += step * is_above;
	}
	return place;
}

/* Returns the logarithm to base 2 of `number`, from 1 to 2^32, with LOG_BITS fraction bits. */
static __always_inline u64 binary_logarithm(u64 number)
{
	u64 log = highest_bit(number);
	u64 square = number << (63 - log) >> 32;

	/* `square` has 31 fraction bits. Whenever squaring reaches 2, the logarithm's next bit is 1. */
#pragma unroll
	for (u32 bit = 0; bit < LOG_BITS; bit++) {
		square = square * square >> 31;

		u64 reached = square >> 32;

		OPAQUE(reached);
		square >>= reached;
		log = log << 1 | reached;
	}
	return log;
}

/* Returns e^-x for x below 32, both with EXP_BITS fraction bits. */
static __always_inline u64 falling_exponential(u64 x)
{
	/* e^-(2^4) to e^-(2^-16), with EXP_BITS fraction bits. */
	static const u64 powers[] = {
		242, 720401, 39332535, 290630308, 790015084, 1302514674, 1672461947, 1895147668, 2017374191,
		2081412522, 2114190000, 2130771798, 2139111403, 2143293437, 2145387520, 2146435328, 2146959424, 2147221520,
		2147352580, 2147418113, 2147450880,
	};
	u64 result = 1ULL << EXP_BITS;

#pragma unroll
	for (u32 number = 0; number < 21; number++) {
		u64 bit = x >> (EXP_BITS + 4 - number) & 1;

		OPAQUE(bit);
		result = result * ((1ULL << EXP_BITS) - bit * ((1ULL << EXP_BITS) - powers[number])) >> EXP_BITS;
	}
	return result;
}

/*
 * Returns a number of bytes from one chosen byte to the next: exponentially distributed with `mean`, at most 2^40, if
 * `random` is uniform over 32 bits. Not static: verified once, by itself.
 */
__noinline u64 exponential_gap(u64 mean, u32 random)
{
	/* ln 2, with LOG_BITS fraction bits. */
	const u64 ln2 = 46516320;
	u64 below = (32ULL << LOG_BITS) - binary_logarithm((u64)random + 1);

	return multiply_shifted(mean, below * ln2 >> LOG_BITS, LOG_BITS);
}

/*
 * Returns 1 / (1 - e^-x) with x = size / mean, the inverse of the probability that at least one of `size` bytes, at
 * least 1, is chosen if each is with probability 1 / `mean`, at most 2^40. With WEIGHT_SHIFT fraction bits.
 */
__noinline u64 inverse_probability(u64 size, u64 mean)
{
	u64 one = 1ULL << WEIGHT_SHIFT;

	if (size >> 5 >= mean)
		return one;
	/* Scales both down if they are too large for the shift below; the quotient stays the same. */
	if (size >> EXP_BITS) {
		u64 shift = (highest_bit(size) - (EXP_BITS - 1)) & 63;

		size >>= shift;
		mean = (mean >> shift) | 1;
	}

	u64 x = (size << EXP_BITS) / mean;

	if (x >> (EXP_BITS + 5))
		return one;
	if (x >> EXP_BITS)
		return (1ULL << (EXP_BITS + WEIGHT_SHIFT)) / ((1ULL << EXP_BITS) - falling_exponential(x));

	/* Power series 1/x + 1/2 + x/12 - ...: the next term is below 10^-6 of the sum. */
	u64 cube = ((x * x >> EXP_BITS) * x) >> EXP_BITS;
	u64 terms = x / 12 - cube / 720 + (cube * (x * x >> EXP_BITS) >> EXP_BITS) / 30240;

	return (mean << WEIGHT_SHIFT) / size + one / 2 + (terms >> (EXP_BITS - WEIGHT_SHIFT));
}

/* Converts a weight of at least 1, with WEIGHT_SHIFT fraction bits, to its stored form; truncates it to 24 bits. */
static __always_inline u32 store_weight(u64 weight)
{
	u64 exponent = highest_bit(weight);
	u64 fraction = weight << (63 - exponent) >> 40 & 0x7fffff;

	return (127 + exponent - WEIGHT_SHIFT) << 23 | fraction;
}

/* Converts a stored weight to one with WEIGHT_SHIFT fraction bits. */
static __always_inline u64 load_weight(u32 stored)
{
	u64 fraction = 1 << 23 | (stored & 0x7fffff);
	u32 exponent = (stored >> 23) - 127;

	return fraction << (exponent & 63) >> (23 - WEIGHT_SHIFT);
}

/* Returns size * weight, rounded: truncation would bias sums over many small blocks by half a byte for each. */
static __always_inline u64 weighted_bytes(u64 size, u64 weight)
{
	u64 halves = multiply_shifted(size, weight, WEIGHT_SHIFT - 1);

	return (halves >> 1) + (halves & 1);
}

/* Returns a random position among `sampling_interval` calls. */
static __always_inline u64 random_place(void)
{
	return (u64)bpf_get_prandom_u32() * sampling_interval >> 32;
}

/* Begins a round of `sampling_interval` calls, which starts after `before` further calls, and chooses one of them. */
static __always_inline void begin_round(struct sampler *sampler, u64 before)
{
	u64 place = random_place();

	sampler->until_next = before + place;
	sampler->behind_next = sampling_interval - 1 - place;
}

/* Returns whether this call is chosen, with one of every `sampling_interval` calls chosen. */
static __always_inline bool choose_by_calls(struct sampler *sampler)
{
	if (!sampler->begun) {
		sampler->begun = true;
		begin_round(sampler, 0);
	}
	if (sampler->until_next) {
		sampler->until_next--;
		return false;
	}
	begin_round(sampler, sampler->behind_next);
	return true;
}

/* Returns whether one of this call's bytes is chosen, each being chosen with probability 1 / `mean`. */
static __always_inline bool choose_by_bytes(struct sampler *sampler, u64 size, u64 mean)
{
	/*
	 * The rest of an exponential gap has the same distribution: drawing it again, with another mean, adds no bias.
	 */
	if (sampler->mean != mean) {
		sampler->mean = mean;
		sampler->until_next = exponential_gap(mean, bpf_get_prandom_u32());
	}
	if (sampler->until_next >= size) {
		sampler->until_next -= size;
		return false;
	}
	sampler->until_next = exponential_gap(mean, bpf_get_prandom_u32());
	return true;
}

/* Returns the weight with SAMPLE_BYTES. Reads the mean once: choice and weight must use the same one. */
static __always_inline u32 weight_by_bytes(struct sampler *sampler, u64 size)
{
	u64 mean = governed ? *(volatile u64 *)&distance.mean : sampling_interval;

	if (governed && mean <= 1)
		return WEIGHT_ONE;
	return choose_by_bytes(sampler, size, mean) ? store_weight(inverse_probability(size, mean)) : 0;
}

/* Returns whether -z and -Z exclude blocks of `size`. */
static __always_inline bool is_filtered(u64 size)
{
	return filter_sizes && (size < min_size || size > max_size);
}

/* Returns the stored weight of the block that a call requests, or 0 if the call is not chosen. */
static __always_inline u32 chosen_weight(struct sampler *sampler, u64 size)
{
	switch (sampling) {
	case SAMPLE_CALLS:
		return choose_by_calls(sampler) ? store_weight(sampling_interval << WEIGHT_SHIFT) : 0;
	case SAMPLE_BYTES:
		/* A block of 0 bytes is sampled as one of 1 byte: it would otherwise never be chosen. */
		return weight_by_bytes(sampler, size + !size);
	default:
		return WEIGHT_ONE;
	}
}
