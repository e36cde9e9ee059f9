// A shop: a cache of orders that grows up to its bound, a catalogue that is loaded at the start, temporary replies, and
// refunds that leave their audit behind: the leak, in `Auditor::make`.
//
// Says "ready" and waits for a line, or the end of its input, before it allocates. Runs until it is killed.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "paced.h"
}

struct Catalogue {
    std::map<int, std::string> items;
    [[gnu::noinline]] void load()
    {
        for (int item = 0; item < 2000; item++)
            items[item] = std::string("an item of the catalogue, which has a rather long name ") + std::to_string(item);
    }
};

class Handler {
    static constexpr long room = 3000;
    std::vector<std::pair<long, std::string>> orders{room, {-1, {}}};

  public:
    [[gnu::noinline]] void put(long number)
    {
        auto &slot = orders[number % room];
        // A slot reuses the memory of its order's text.
        slot.first = number;
        if (slot.second.empty())
            slot.second = std::string(400, 'o');
        else
            slot.second[number % 400] = 'p';
    }

    [[gnu::noinline]] size_t reply(long number)
    {
        std::string text = "order " + std::to_string(number) + " was taken, and will be sent as soon as that can be";
        auto copy = std::make_unique<std::string>(text);
        return copy->size();
    }

    void refund(long number);
};

struct Audit {
    long number;
    char reason[56];
};

struct Auditor {
    static Audit *volatile last;
    [[gnu::noinline]] static void make(long number) { last = new Audit{number, "wrong size"}; }
};
Audit *volatile Auditor::last;

[[gnu::noinline]] void Handler::refund(long number) { Auditor::make(number); }

static Catalogue catalogue;
static Handler handler;

static void order(long number)
{
    handler.put(number);
    handler.reply(number);
    if (number % 20 == 0)
        handler.refund(number);
}

int main()
{
    puts("ready");
    fflush(stdout);
    getchar();
    catalogue.load();
    at_rate(1600, order);
}
