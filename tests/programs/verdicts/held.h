/* Blocks that are held by other memory: data, blocks and mappings, with pointers as in C programs. */
#pragma once
#include <fcntl.h>
#if __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#else
#define RUNNING_ON_VALGRIND 0
#define VALGRIND_DO_LEAK_CHECK
#endif
#include "kinds.h"

KIND(held_by_data)
static void *volatile in_data[MOST] = {&wanted};
static Count set_up_data()
{
	fill(in_data, wanted, held_by_data);
	return each(wanted);
}

KIND(held_by_bss)
static void *volatile in_bss[MOST];
static Count set_up_bss()
{
	fill(in_bss, wanted, held_by_bss);
	return each(wanted);
}

KIND(held_by_relro)
/* The address in it needs a relocation: so it is writable while the program is loaded, and read-only afterwards. */
__attribute__((section(".data.rel.ro.kinds"))) static void *volatile in_relro[MOST] = {&wanted};
static Count set_up_relro()
{
	uintptr_t page = sysconf(_SC_PAGESIZE);
	uintptr_t start = reinterpret_cast<uintptr_t>(in_relro) & -page;
	size_t size = reinterpret_cast<uintptr_t>(in_relro + MOST) - start;

	/* Only the loader can write there; this does what it does. */
	if (mprotect(reinterpret_cast<void *>(start), size, PROT_READ | PROT_WRITE) != 0)
		fail("mprotect");
	fill(in_relro, wanted, held_by_relro);
	if (mprotect(reinterpret_cast<void *>(start), size, PROT_READ) != 0)
		fail("mprotect");
	return each(wanted);
}

KIND(held_by_static_local)
static Count set_up_static_local()
{
	static void *volatile table[MOST];

	fill(table, wanted, held_by_static_local);
	return each(wanted);
}

struct Node {
	Node *next;
	Node *previous;
	char rest[SIZE - 2 * sizeof(void *)];
};

static Node *node(Allocate *allocate)
{
	return static_cast<Node *>(allocate(sizeof(Node)));
}

/* Makes a singly linked list; returns its head. */
static Node *list(Allocate *allocate)
{
	Node *head = nullptr;

	for (size_t at = 0; at < wanted; at++) {
		Node *first = node(allocate);

		first->next = head;
		head = first;
	}
	return head;
}

/* Makes a doubly linked list; returns its head. */
static Node *double_list(Allocate *allocate)
{
	Node *head = list(allocate);

	for (Node *at = head; at->next; at = at->next)
		at->next->previous = at;
	return head;
}

/* Makes a ring; returns any of its blocks. */
static Node *ring(Allocate *allocate)
{
	Node *head = double_list(allocate);
	Node *last = head;

	while (last->next)
		last = last->next;
	last->next = head;
	head->previous = last;
	return head;
}

/* Makes a tree, with `next` and `previous` as its branches; returns its root. */
static Node *tree(Allocate *allocate, size_t size)
{
	if (size == 0)
		return nullptr;
	Node *root = node(allocate);

	root->next = tree(allocate, (size - 1) / 2);
	root->previous = tree(allocate, size - 1 - (size - 1) / 2);
	return root;
}

KIND(held_by_list)
static Count set_up_list()
{
	static Node *volatile head;

	head = list(held_by_list);
	return each(wanted);
}

KIND(held_by_double_list)
static Count set_up_double_list()
{
	static Node *volatile middle;
	Node *at = double_list(held_by_double_list);

	for (size_t step = 0; step < wanted / 2; step++)
		at = at->next;
	middle = at;
	return each(wanted);
}

KIND(held_by_ring)
static Count set_up_ring()
{
	static Node *volatile any;

	any = ring(held_by_ring);
	return each(wanted);
}

KIND(held_by_tree)
static Count set_up_tree()
{
	static Node *volatile root;

	root = tree(held_by_tree, wanted);
	return each(wanted);
}

/* Fills a table with pointers to another place than the start of blocks. */
static Count fill_at(void *volatile *table, Allocate *allocate, size_t offset)
{
	for (size_t at = 0; at < wanted; at++)
		table[at] = static_cast<char *>(allocate(SIZE)) + offset;
	return each(wanted);
}

KIND(held_by_middle)
static Count set_up_middle()
{
	static void *volatile table[MOST];
	return fill_at(table, held_by_middle, SIZE / 2);
}

KIND(held_by_second_word)
static Count set_up_second_word()
{
	static void *volatile table[MOST];
	return fill_at(table, held_by_second_word, 8);
}

KIND(held_by_last_byte)
static Count set_up_last_byte()
{
	static void *volatile table[MOST];
	return fill_at(table, held_by_last_byte, SIZE - 1);
}

KIND(held_by_end)
/* As in programs that keep only `end` and a length: a pointer that C allows, but not into the block. */
static Count set_up_end()
{
	static void *volatile table[MOST];
	return fill_at(table, held_by_end, SIZE);
}

KIND(held_by_low_tag)
static Count set_up_low_tag()
{
	static void *volatile table[MOST];
	return fill_at(table, held_by_low_tag, 5);
}

KIND(held_by_length_prefixed)
static Count set_up_length_prefixed()
{
	static void *volatile table[MOST];

	for (size_t at = 0; at < wanted; at++) {
		size_t *block = static_cast<size_t *>(held_by_length_prefixed(SIZE));

		*block = SIZE - sizeof(size_t);
		table[at] = block + 1;
	}
	return each(wanted);
}

KIND(held_by_string_rep)
/* As in std::string before C++11: a pointer to the characters, behind length, capacity and number of references. */
static Count set_up_string_rep()
{
	static void *volatile table[MOST];

	for (size_t at = 0; at < wanted; at++) {
		size_t *block = static_cast<size_t *>(held_by_string_rep(SIZE));

		block[0] = 8;
		block[1] = SIZE - 3 * sizeof(size_t) - 1;
		table[at] = block + 3;
	}
	return each(wanted);
}

KIND(held_by_pointer_array)
/* Each is held by a block that is an array, which another block holds. */
static Count set_up_pointer_array()
{
	static void *volatile outer;
	void **first = static_cast<void **>(scaffold(MOST * sizeof(void *)));

	for (size_t at = 0; at < wanted; at++) {
		void **second = static_cast<void **>(scaffold(SIZE));

		second[SIZE / sizeof(void *) - 1] = held_by_pointer_array(SIZE);
		first[at] = second;
	}
	outer = first;
	return each(wanted);
}

KIND(held_in_own_mapping)
/* Each is so large that the C library maps it; its last page holds the next. */
static Count set_up_own_mapping()
{
	constexpr size_t large = 256 << 10;
	static void *volatile head;

	for (size_t at = 0; at < wanted; at++) {
		void **block = static_cast<void **>(held_in_own_mapping(large));

		block[large / sizeof(void *) - 1] = head;
		head = block;
	}
	return each(wanted);
}

constexpr size_t TABLE = MOST * sizeof(void *);

KIND(held_by_private_page)
static Count set_up_private_page()
{
	fill(map(TABLE, MAP_PRIVATE | MAP_ANONYMOUS, -1), wanted, held_by_private_page);
	return each(wanted);
}

KIND(held_by_shared_page)
static Count set_up_shared_page()
{
	fill(map(TABLE, MAP_SHARED | MAP_ANONYMOUS, -1), wanted, held_by_shared_page);
	return each(wanted);
}

/* Opens a nameless file of one table's size. */
static int nameless_file()
{
	char path[] = "/tmp/kindsXXXXXX";
	int file = mkstemp(path);

	if (file < 0 || unlink(path) != 0 || ftruncate(file, TABLE) != 0)
		fail(path);
	return file;
}

KIND(held_by_memfd_page)
static Count set_up_memfd_page()
{
	int file = memfd_create("kinds", MFD_CLOEXEC);

	if (file < 0 || ftruncate(file, TABLE) != 0)
		fail("memfd_create");
	fill(map(TABLE, MAP_SHARED, file), wanted, held_by_memfd_page);
	close(file);
	return each(wanted);
}

KIND(held_by_shared_file)
static Count set_up_shared_file()
{
	int file = nameless_file();

	fill(map(TABLE, MAP_SHARED, file), wanted, held_by_shared_file);
	close(file);
	return each(wanted);
}

KIND(held_by_private_file)
/* In the process's private copies of the file's pages. */
static Count set_up_private_file()
{
	int file = nameless_file();

	fill(map(TABLE, MAP_PRIVATE, file), wanted, held_by_private_file);
	close(file);
	return each(wanted);
}

/* Fills a page, and then restricts the access to it. */
static Count fill_protected(Allocate *allocate, int protection)
{
	void *volatile *table = map(TABLE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	fill(table, wanted, allocate);
	if (mprotect(const_cast<void **>(table), TABLE, protection) != 0)
		fail("mprotect");
	return each(wanted);
}

KIND(held_by_read_only_page)
static Count set_up_read_only_page()
{
	return fill_protected(held_by_read_only_page, PROT_READ);
}

KIND(held_by_no_access_page)
static Count set_up_no_access_page()
{
	return fill_protected(held_by_no_access_page, PROT_NONE);
}

KIND(held_by_brk)
/* In the same mapping as the heap, between its parts. */
static Count set_up_brk()
{
	void *start = sbrk(TABLE);

	if (start == reinterpret_cast<void *>(-1))
		fail("sbrk");
	fill(static_cast<void *volatile *>(start), wanted, held_by_brk);
	return each(wanted);
}

KIND(held_by_sparse_mapping)
/* In one page of a TiB (with valgrind, which has no room for that, and reads all pages: of a GiB). */
static Count set_up_sparse_mapping()
{
	size_t size = static_cast<size_t>(1) << (RUNNING_ON_VALGRIND ? 30 : 40);
	void *volatile *start = map(size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);

	fill(start + size / 2 / sizeof(void *), wanted, held_by_sparse_mapping);
	return each(wanted);
}
