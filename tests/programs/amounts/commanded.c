/* Grows and shrinks by command: `+N` allocates and touches N MiB in blocks of 1 MiB, from `grow`; `-` frees them all, from
 * `shrink`; `!` grows until it is killed. */
#include <malloc.h>
#include <string.h>
#include <unistd.h>

#include "../handshake.h"
#include "../keep.h"

#define MIB (1 << 20)
#define MAX_BLOCKS 4096

static void *blocks[MAX_BLOCKS];
static int count;

NOINLINE static void grow(void)
{
	if (count == MAX_BLOCKS)
		_exit(2);
	blocks[count] = malloc(MIB);
	memset(blocks[count++], 1, MIB);
}

NOINLINE static void shrink(void)
{
	while (count > 0)
		free(blocks[--count]);
}

/* Reads a line of less than 32 bytes; ends the program at the end of the input. */
static void read_command(char *line)
{
	int length = 0;

	while (read(STDIN_FILENO, line + length, 1) == 1) {
		if (line[length] == '\n' || length == 30) {
			line[length] = 0;
			return;
		}
		length++;
	}
	_exit(0);
}

int main(void)
{
	char line[32];

	/* Blocks are separate mappings, which go back to the kernel when they are freed. */
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	say("ready");
	for (;;) {
		read_command(line);
		if (line[0] == '+')
			for (volatile int left = atoi(line + 1); left > 0; left--)
				grow();
		while (line[0] == '!')
			grow();
		if (line[0] == '-')
			shrink();
		say("done");
	}
}
