/* Program with known memory, by its first argument. It prints a line of numbers, and waits until its input ends. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MIB (1 << 20)

static void check(int is_true, const char *what)
{
	if (!is_true) {
		perror(what);
		exit(1);
	}
}

static void *map(size_t bytes, int rights, int flags, int file)
{
	void *memory = mmap(NULL, bytes, rights, flags, file, 0);

	check(memory != MAP_FAILED, "mmap");
	return memory;
}

/* Threads: some end unjoined, detached or joined, and some run, all with 200 KiB of their stacks in use. */
enum { UNJOINED = 5, DETACHED = 4, JOINED = 3, RUNNING = 2, ALL = UNJOINED + DETACHED + JOINED + RUNNING };

static pthread_barrier_t begun;

static void *use_stack(void *runs_on)
{
	volatile char used[200 << 10];

	memset((char *)used, 1, sizeof used);
	pthread_barrier_wait(&begun);
	while (runs_on)
		pause();
	return (void *)(long)used[5];
}

static void threads(void)
{
	pthread_t ids[ALL];
	pthread_attr_t attributes;

	pthread_barrier_init(&begun, NULL, ALL + 1);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 512 << 10);
	pthread_attr_setguardsize(&attributes, 8 << 10);
	for (int i = 0; i < ALL; i++)
		check(!pthread_create(&ids[i], &attributes, use_stack, i < RUNNING ? ids : NULL), "pthread_create");
	for (int i = RUNNING; i < RUNNING + DETACHED; i++)
		pthread_detach(ids[i]);
	pthread_barrier_wait(&begun);
	for (int i = RUNNING + DETACHED; i < RUNNING + DETACHED + JOINED; i++)
		pthread_join(ids[i], NULL);
	/* The others end by themselves. */
	for (int i = 0; i < 1000; i++) {
		char text[4096];
		FILE *status = fopen("/proc/self/status", "r");
		size_t length = fread(text, 1, sizeof text - 1, status);
		int count = 0;

		fclose(status);
		text[length] = 0;
		sscanf(strstr(text, "\nThreads:"), "\nThreads: %d", &count);
		if (count == RUNNING + 1)
			break;
		usleep(1000);
	}
	printf("%d %d %d\n", RUNNING, UNJOINED, DETACHED + JOINED);
}

static void *use_arena(void *blocks)
{
	for (int i = 0; i < 2048; i++)
		memset(malloc(1000), 1, 1000);
	*(int *)blocks = 1;
	pause();
	return NULL;
}

/* Mappings of many kinds. */
static void kinds(void)
{
	int file = memfd_create("unmapped", 0), mapped = memfd_create("mapped", 0);
	int segment = shmget(IPC_PRIVATE, 2 * MIB, 0600);
	char *memory = malloc(8 * MIB);
	volatile int done = 0;
	pthread_t id;
	int deleted;

	for (int i = 0; i < 8; i++)
		check(write(file, memset(memory, 1, MIB), MIB) == MIB, "write");
	deleted = open("/dev/shm", O_RDWR | O_TMPFILE, 0600);
	if (deleted >= 0)
		check(write(deleted, memory, MIB) == MIB, "write");
	free(memory);
	check(!ftruncate(mapped, 4 * MIB), "ftruncate");
	memset(map(4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, mapped), 1, 4 * MIB);
	memory = shmat(segment, NULL, 0);
	check(memory != (void *)-1, "shmat");
	shmctl(segment, IPC_RMID, NULL);
	memset(memory, 1, 2 * MIB);
	memset(map(6 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1), 1, 6 * MIB);
	memory = map(3 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memset(memory, 0xc3, 3 * MIB);
	check(!mprotect(memory, 3 * MIB, PROT_READ | PROT_EXEC), "mprotect");
	memset(map(5 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 1, 5 * MIB);
	map(64 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	memset(malloc(10 * MIB), 1, 10 * MIB);
	memset(aligned_alloc(4096, 12 * MIB), 1, 12 * MIB);
	for (int i = 0; i < 3072; i++)
		memset(malloc(1000), 1, 1000);
	check(dlopen("libm.so.6", RTLD_NOW) || dlopen("libc.so", RTLD_NOW), "dlopen");
	pthread_create(&id, NULL, use_arena, (void *)&done);
	while (!done)
		usleep(1000);
	printf("%d\n", deleted >= 0);
}

static void fill(int file, int bytes)
{
	static char zeros[4096];

	while (bytes > 0) {
		int part = bytes < (int)sizeof zeros ? bytes : (int)sizeof zeros;

		check(write(file, zeros, part) == part, "write");
		bytes -= part;
	}
}

/* Sockets with queues, pipes, and other objects of the kernel. */
static void files(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int pair[2], ends[2], server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0);

	check(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
	fill(pair[0], 100000);
	check(!bind(server, (void *)&address, length) && !listen(server, 5), "listen");
	check(!getsockname(server, (void *)&address, &length), "getsockname");
	check(!connect(client, (void *)&address, length), "connect");
	check(accept(server, NULL, NULL) >= 0, "accept");
	fill(client, 50000);
	address.sin_port = 0;
	check(!bind(datagrams, (void *)&address, length), "bind");
	check(!getsockname(datagrams, (void *)&address, &length), "getsockname");
	check(sendto(datagrams, "12345", 5, 0, (void *)&address, length) == 5, "sendto");
	for (int i = 0; i < 3; i++) {
		check(!pipe(ends), "pipe");
		fill(ends[1], 65536);
	}
	epoll_create1(0);
	eventfd(0, 0);
	eventfd(0, 0);
	timerfd_create(CLOCK_MONOTONIC, 0);
	inotify_init();
	/* What was sent is received in the meantime. */
	usleep(100000);
	printf("100000 50000 3\n");
}

/* Huge pages: of 16, every second is touched in its first byte only. */
static void huge(void)
{
	enum { SIZE = 2 * MIB, COUNT = 16 };
	char *memory = map((COUNT + 1) * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	memory += SIZE - (unsigned long)memory % SIZE;
	check(!madvise(memory, COUNT * SIZE, MADV_HUGEPAGE), "madvise");
	for (int i = 0; i < COUNT; i++)
		memset(memory + i * SIZE, 1, i % 2 ? SIZE : 1);
	printf("%d\n", COUNT / 2 * (SIZE - 4096));
}

/* Mappings of one page, with alternating rights, and ordinary memory. */
static void many(int count, int mib)
{
	for (int i = 0; i < count; i++)
		*(char *)map(4096, PROT_READ | PROT_WRITE | (i % 2 ? PROT_EXEC : 0), MAP_PRIVATE | MAP_ANONYMOUS, -1) = 1;
	for (int i = 0; i < mib; i++)
		memset(malloc(MIB), 1, MIB);
	printf("%d\n", count);
}

int main(int count, char **arguments)
{
	const char *wanted = count > 1 ? arguments[1] : "";

	if (!strcmp(wanted, "threads"))
		threads();
	else if (!strcmp(wanted, "kinds"))
		kinds();
	else if (!strcmp(wanted, "files"))
		files();
	else if (!strcmp(wanted, "huge"))
		huge();
	else if (!strcmp(wanted, "many") && count > 3)
		many(atoi(arguments[2]), atoi(arguments[3]));
	else
		return 1;
	fflush(stdout);
	while (read(0, arguments[0], 1) > 0)
		;
	return 0;
}
