// Workers in threads over shared pointers: a table of results that fills at random, so that its growth fades, shapes
// made at the start, tasks that come and go, and nodes that own each other, so that they are never freed: the leak, in
// `link_back`.
//
// Says "ready" and waits for a line, or the end of its input, before it allocates. Runs until it is killed.
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

extern "C" {
#include "paced.h"
}

struct Node {
    std::shared_ptr<Node> other;
    char payload[80];
};

static std::mutex lock;
static std::unordered_map<unsigned, std::shared_ptr<std::vector<char>>> results;
static std::vector<std::unique_ptr<std::vector<char>>> shapes;

[[gnu::noinline]] static void make_shapes()
{
    for (int shape = 0; shape < 500; shape++)
        shapes.push_back(std::make_unique<std::vector<char>>(1000));
}

[[gnu::noinline]] static void remember(unsigned key)
{
    std::lock_guard<std::mutex> guard(lock);
    auto &result = results[key];
    if (!result)
        result = std::make_shared<std::vector<char>>(600);
}

[[gnu::noinline]] static long compute(long number)
{
    std::vector<long> steps;
    for (long step = 0; step < 20; step++)
        steps.push_back(number * step);
    return steps.back();
}

[[gnu::noinline]] static void link_back(long number)
{
    auto one = std::make_shared<Node>(), two = std::make_shared<Node>();
    one->payload[0] = static_cast<char>(number);
    one->other = two;
    two->other = one;
}

static void task(long number)
{
    thread_local unsigned random = 12345;
    random = random * 1664525 + 1013904223;
    remember(random >> 20 & 1023);
    compute(number);
    if (number % 60 == 0)
        link_back(number);
}

int main()
{
    puts("ready");
    fflush(stdout);
    getchar();
    make_shapes();
    std::vector<std::thread> workers;
    for (int worker = 0; worker < 3; worker++)
        workers.emplace_back([] { at_rate(500, task); });
    for (auto &worker : workers)
        worker.join();
}
