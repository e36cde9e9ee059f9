/*
 * Blocks that are held in known ways: by which variable, through which blocks, and which blocks depend on them.
 *
 * usage: holders PATH_OF_LIBRARY
 *
 * Waits for a line before the first of them. Then prints a line for each allocating function: `FUNCTION BLOCKS BYTES`,
 * with the amount that would be lost with its blocks. After `ready` everything stays as it is until a line comes.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "../handshake.h"

#define KEEP __attribute__((noinline, noclone))

struct Connection {
	virtual ~Connection() {}
	virtual int kind() = 0;
	char *buffer = nullptr;
};

struct Session : Connection {
	int kind() override { return 1; }
	int64_t user[4] = {};
};

struct Entry {
	char text[40];
};

struct Node {
	virtual ~Node() {}
	std::shared_ptr<Node> left, right;
};

std::map<int, Session *> g_sessions;
std::shared_ptr<Node> g_graph;
thread_local std::vector<char *> t_buffers;

static const size_t buffer_bytes = 200;
static const int count = 100;

KEEP char *make_buffer()
{
	return new char[buffer_bytes];
}

KEEP Session *make_session()
{
	Session *session = new Session;
	session->buffer = make_buffer();
	return session;
}

KEEP void open_sessions()
{
	for (int number = 0; number < count; number++)
		g_sessions.emplace(number, nullptr);
	for (auto &session : g_sessions)
		session.second = make_session();
}

KEEP Entry *make_entry()
{
	return new Entry;
}

KEEP std::unordered_map<int, Entry *> &cache()
{
	static std::unordered_map<int, Entry *> entries;
	return entries;
}

KEEP void fill_cache()
{
	cache().reserve(count);
	for (int number = 0; number < count; number++)
		cache().emplace(number, nullptr);
	for (auto &entry : cache())
		entry.second = make_entry();
}

KEEP std::shared_ptr<Node> make_node()
{
	return std::make_shared<Node>();
}

/* Two nodes that share a third. */
KEEP void make_graph()
{
	std::shared_ptr<Node> nodes[4];

	for (auto &node : nodes)
		node = make_node();
	nodes[1]->left = nodes[3];
	nodes[2]->right = nodes[3];
	nodes[0]->left = nodes[1];
	nodes[0]->right = nodes[2];
	g_graph = nodes[0];
}

KEEP char *make_thread_buffer()
{
	return new char[buffer_bytes];
}

static pthread_barrier_t filled;

static void *run_worker(void *)
{
	pthread_setname_np(pthread_self(), "worker");
	t_buffers.reserve(count);
	for (int number = 0; number < count; number++)
		t_buffers.push_back(make_thread_buffer());
	pthread_barrier_wait(&filled);
	pthread_barrier_wait(&filled);
	return nullptr;
}

KEEP char *make_local()
{
	return new char[buffer_bytes];
}

static void print(const char *function, size_t blocks, size_t bytes)
{
	char line[100];

	snprintf(line, sizeof(line), "%s %zu %zu", function, blocks, bytes);
	say(line);
}

/* All its blocks are held by the stack of main only. */
KEEP void hold_on_stack(std::vector<char *> &locals)
{
	for (int number = 0; number < count; number++)
		locals.push_back(make_local());
}

int main(int, char **arguments)
{
	std::vector<char *> locals;
	pthread_t worker;

	await_line();
	void *library = dlopen(arguments[1], RTLD_NOW);
	if (!library)
		return 1;
	locals.reserve(count);
	hold_on_stack(locals);
	open_sessions();
	fill_cache();
	make_graph();
	reinterpret_cast<void (*)(int)>(dlsym(library, "make_widgets"))(count);
	pthread_barrier_init(&filled, nullptr, 2);
	pthread_create(&worker, nullptr, run_worker, nullptr);
	pthread_barrier_wait(&filled);

	size_t session = sizeof(Session) + buffer_bytes;
	size_t node = 32 + sizeof(std::pair<const int, Session *>);
	print("open_sessions", 3 * count, count * (node + session));
	print("make_session", 2 * count, count * session);
	print("make_buffer", count, count * buffer_bytes);
	print("make_entry", count, count * sizeof(Entry));
	print("make_node", 4, 4 * (16 + sizeof(Node)));
	print("make_thread_buffer", count, count * buffer_bytes);
	print("make_local", count, count * buffer_bytes);
	rendezvous("ready");
	pthread_barrier_wait(&filled);
	pthread_join(worker, nullptr);
	return locals.size() == count ? 0 : 1;
}
