/*
 * Replaces code behind the loader's back.
 *
 * usage: remap library|jit|new-jit LIBRARY LIBRARY. For each line on standard input it allocates once,
 *     main -> call_library -> outer_a -> inner_a -> malloc
 * in the first library until the line "swap", and from then on, at the same address, in a copy of the second
 * library that it maps by itself, or
 *     main -> call_jit -> code that it wrote there -> allocate -> malloc.
 * With new-jit, the code is where nothing was mapped before; "swap" may come first. At "nowhere", it allocates once by
 *     main -> call_nowhere -> allocate -> malloc
 * where call_nowhere returns, by its CFI, to an address at which nothing is mapped.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>
#include "../handshake.h"
#include "../keep.h"

/* Address space of a library here, in bytes. */
#define LIBRARY_BYTES 0x5000

typedef int (*entry_function)(void *);

struct library {
	const char *path;
	char *base;
	entry_function entry;
};

static struct library load(const char *path)
{
	struct library library = { .path = path };
	void *handle = dlopen(path, RTLD_NOW);
	entry_function *entry = handle ? dlsym(handle, "entry") : NULL;
	struct link_map *map;

	if (!entry || dlinfo(handle, RTLD_DI_LINKMAP, &map))
		_exit(1);
	library.base = (char *)map->l_addr;
	library.entry = *entry;
	return library;
}

/* Maps the mappings of `from` a second time, at the place of `to`; parts that differ from the file are copied. */
static void copy_mappings(const struct library *from, struct library *to)
{
	char line[512], path[256];
	FILE *maps = fopen("/proc/self/maps", "r");
	int file = open(from->path, O_RDONLY);

	while (maps && fgets(line, sizeof line, maps)) {
		unsigned long start, end, offset;
		char permissions[5];

		if (sscanf(line, "%lx-%lx %4s %lx %*s %*s %255s", &start, &end, permissions, &offset, path) != 5 ||
		    strcmp(path, from->path) || start - (unsigned long)from->base >= LIBRARY_BYTES)
			continue;
		char *at = to->base + ((char *)start - from->base);
		int writable = permissions[1] == 'w';
		int protection = PROT_READ | (writable ? PROT_WRITE : 0) | (permissions[2] == 'x' ? PROT_EXEC : 0);

		if (mmap(at, end - start, protection | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, offset) != at)
			_exit(1);
		/* The relocated part, which is not executable. */
		if (permissions[2] != 'x' && offset)
			memcpy(at, (char *)start, end - start);
		mprotect(at, end - start, protection);
	}
	if (maps)
		fclose(maps);
	to->entry = (entry_function)(to->base + ((char *)from->entry - from->base));
}

NOINLINE static void allocate(void)
{
	LEAK();
}

NOINLINE static int call_library(entry_function entry)
{
	return entry(NULL) + 1;
}

NOINLINE static int call_jit(void (*code)(void (*)(void)))
{
	code(allocate);
	return 1;
}

/* Its CFI does not mention the word that it pushes, so that this seems to be the return address. */
void call_nowhere(void (*function)(void));
__asm__(".text\n"
	".type call_nowhere,@function\n"
	"call_nowhere:\n"
	"	.cfi_startproc\n"
	"	push $0x1234\n"
	"	call *%rdi\n"
	"	pop %rax\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size call_nowhere,.-call_nowhere\n");

/* Writes a function that keeps a frame pointer and calls its argument. */
static void write_code(char *at)
{
	static const unsigned char code[] = {
		0x55,		  /* push %rbp */
		0x48, 0x89, 0xe5, /* mov %rsp,%rbp */
		0xff, 0xd7,	  /* call *%rdi */
		0x5d,		  /* pop %rbp */
		0xc3,		  /* ret */
	};

	memcpy(at, code, sizeof code);
}

#define CODE_BYTES 0x4000

static char *map_code(char *at)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0);
	char *memory = mmap(at, CODE_BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, flags, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

/* Reads a line. Ends the program at the end of the input. */
static const char *read_line(void)
{
	static char text[16];
	size_t length = 0;

	memset(text, 0, sizeof text);
	while (length < sizeof text - 1) {
		if (read(STDIN_FILENO, text + length, 1) != 1)
			_exit(0);
		if (text[length++] == '\n')
			break;
	}
	return text;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 1;
	const char *mode = argv[1];
	struct library first = load(argv[2]), second = load(argv[3]);
	void (*code)(void (*)(void)) = NULL;
	volatile int sum = 0;

	say("ready");
	for (;;) {
		const char *line = read_line();

		if (!strcmp(line, "nowhere\n")) {
			call_nowhere(allocate);
			say("done");
			continue;
		}
		if (!strcmp(line, "swap\n")) {
			if (!strcmp(mode, "library")) {
				copy_mappings(&second, &first);
			} else {
				char *memory = map_code(strcmp(mode, "jit") ? NULL : first.base);

				if (!memory)
					return 1;
				memory += strcmp(mode, "jit") ? 0 : (char *)first.entry - first.base;
				write_code(memory);
				code = (void (*)(void (*)(void)))memory;
			}
		}
		sum += code ? call_jit(code) : call_library(first.entry);
		say("done");
	}
}
