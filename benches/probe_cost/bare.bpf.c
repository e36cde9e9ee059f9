/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Programs that do nothing: the cost of a probe that runs one is the kernel's alone. */
#define SEC(name) __attribute__((section(name), used))

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Entry and return. */
SEC("uprobe.session")
int both(void *ctx)
{
	return 0;
}

/* Entry; refuses the return. */
SEC("uprobe.session")
int entry_alone(void *ctx)
{
	return 1;
}

SEC("uprobe.multi")
int release(void *ctx)
{
	return 0;
}
