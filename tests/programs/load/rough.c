/*
 * Everything at once, in ROUNDS rounds, and nothing is left: threads whose blocks grow, shrink and move by realloc
 * while others take the addresses that become free; threads that are cancelled while they hold a block, which their
 * cleanup handler frees; jumps out of functions that allocate; children that free inherited blocks.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>
#include "../handshake.h"
#include "../keep.h"

#define RESIZERS 2
#define TAKERS 2

static long rounds;

NOINLINE static void *resizer(void *argument)
{
	void *block = malloc(1);

	for (long round = 0; round < rounds * 20; round++)
		block = realloc(block, 16 + round * 1097 % 9000);
	free(block);
	return argument;
}

NOINLINE static void *taker(void *argument)
{
	for (long round = 0; round < rounds * 20; round++) {
		void *volatile block = malloc(16 + round * 769 % 9000);

		free(block);
	}
	return argument;
}

NOINLINE static void *cancelled(void *argument)
{
	void *volatile block = malloc(777);

	pthread_cleanup_push(free, block);
	for (;;)
		pause();
	pthread_cleanup_pop(1);
	return argument;
}

NOINLINE static void cancel(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, cancelled, NULL))
		_exit(1);
	pthread_cancel(thread);
	pthread_join(thread, NULL);
}

NOINLINE static void jump(jmp_buf back, void *volatile *block)
{
	*block = malloc(888);
	longjmp(back, 1);
}

NOINLINE static void jump_and_return(void)
{
	void *volatile block = NULL;
	jmp_buf back;

	if (!setjmp(back))
		jump(back, &block);
	free(block);
}

NOINLINE static void fork_and_free(void)
{
	void *volatile block = malloc(999);
	pid_t pid = fork();

	if (pid == 0) {
		void *volatile own = malloc(1111);

		free(block);
		free(own);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	free(block);
}

int main(int argc, char **argv)
{
	pthread_t threads[RESIZERS + TAKERS];

	rounds = argc > 1 ? atol(argv[1]) : 1;
	rendezvous("ready");
	for (int number = 0; number < RESIZERS + TAKERS; number++)
		pthread_create(&threads[number], NULL, number < RESIZERS ? resizer : taker, NULL);
	for (long round = 0; round < rounds; round++) {
		cancel();
		jump_and_return();
		if (round % 16 == 0)
			fork_and_free();
	}
	for (int number = 0; number < RESIZERS + TAKERS; number++)
		pthread_join(threads[number], NULL);
	rendezvous("done");
	return 0;
}
