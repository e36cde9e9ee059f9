// Calls a Go library, each time from a deeper stack, so that older calls have left frames where the next ones are.
#include <stdio.h>

long long Enter(long long depth);

__attribute__((noipa)) static long long from_c(int depth)
{
	volatile char room[200] = {(char)depth};
	return (depth > 1 ? from_c(depth - 1) : Enter(3)) + room[0];
}

static void rendezvous(const char *line)
{
	puts(line);
	fflush(stdout);
	getchar();
}

int main(void)
{
	rendezvous("ready");
	for (int round = 0; round < 100; round++)
		from_c(1 + round % 7);
	rendezvous("done");
	return 0;
}
