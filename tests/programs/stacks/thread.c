/* Leaks in a thread that already runs when it is told to: start_thread -> thread_main -> work -> malloc. */
#include <pthread.h>
#include "../handshake.h"
#include "../keep.h"

NOINLINE static int work(int depth)
{
	LEAK();
	return depth + 1;
}

NOINLINE static void *thread_main(void *argument)
{
	rendezvous("ready");
	work(1);
	rendezvous("done");
	return argument;
}

int main(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, thread_main, NULL);
	pthread_join(thread, NULL);
	return 0;
}
