// A server's caches: sessions that expire, answers of which the least recently used are dropped, jobs that threads hand
// to one another, and timers. All of it is held and freed in time; blocks of `lose` are not.
//
// usage: caches RATE THREADS LOST      (requests per second, of all threads; one of LOST loses a block; 0: none)
//
// Says `started`, and after a line begins and says `ready`; after another it stops and says `lost N`; after a third it
// frees everything that it holds, says `cleared`, and waits for a line.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

extern "C" {
#include "../handshake.h"
}

namespace {

constexpr size_t most_answers = 4000;
constexpr size_t most_jobs = 500;
constexpr long session_requests = 20000;

struct Item {
    std::string text;
    // Is handed over without a lock.
    std::unique_ptr<long[]> amounts{new long[8]()};
};

struct Session {
    long user = 0, expires = 0;
    std::vector<std::shared_ptr<Item>> basket;
    std::map<std::string, std::string> settings;
    std::function<size_t()> at_end;
};

struct Answer {
    std::string question, text;
    std::shared_ptr<Item> about;
};

struct Job {
    virtual ~Job() = default;
    virtual void run() = 0;
};

struct Timer {
    long due;
    std::weak_ptr<Session> session;
    bool operator<(const Timer &other) const { return due > other.due; }
};

// One part of the cache, with a separate lock.
class Shard {
    std::mutex lock;
    std::unordered_map<long, std::shared_ptr<Session>> sessions;
    std::priority_queue<Timer> timers;
    std::list<Answer> answers;
    std::unordered_map<std::string, std::list<Answer>::iterator> by_question;

  public:
    std::shared_ptr<Item> visit(long user, long now)
    {
        std::lock_guard guard(lock);
        auto &session = sessions[user];
        if (!session) {
            session = std::make_shared<Session>();
            session->user = user;
            auto note = std::make_unique<std::string>("the session of user " + std::to_string(user) + " has ended");
            session->at_end = [note = std::shared_ptr<std::string>(std::move(note))] { return note->size(); };
            timers.push({now + session_requests, session});
        }
        session->expires = now + session_requests;
        session->settings["language of the last request"] = "one of " + std::to_string(now % 97) + " that are known";
        auto item = std::make_shared<Item>();
        item->text = std::string(20 + now % 300, 'i');
        session->basket.push_back(item);
        if (session->basket.size() > 30)
            session->basket.erase(session->basket.begin(), session->basket.begin() + 10);
        expire(now);
        return item;
    }

    size_t answer(long number, std::shared_ptr<Item> about)
    {
        std::string question = "what is known about the number " + std::to_string(number);
        std::lock_guard guard(lock);
        auto found = by_question.find(question);
        if (found != by_question.end()) {
            answers.splice(answers.begin(), answers, found->second);
            answers.front().about = std::move(about);
            return answers.front().text.size();
        }
        answers.push_front({question, std::string(50 + number % 1000, 'a'), std::move(about)});
        by_question.emplace(std::move(question), answers.begin());
        if (answers.size() > most_answers) {
            by_question.erase(answers.back().question);
            answers.pop_back();
        }
        return answers.front().text.size();
    }

    void clear()
    {
        std::lock_guard guard(lock);
        sessions.clear();
        timers = {};
        by_question.clear();
        answers.clear();
    }

  private:
    void expire(long now)
    {
        while (!timers.empty() && timers.top().due <= now) {
            auto session = timers.top().session.lock();
            timers.pop();
            if (!session)
                continue;
            if (session->expires > now) {
                timers.push({session->expires, session});
                continue;
            }
            session->at_end();
            sessions.erase(session->user);
        }
    }
};

Shard shards[4];

std::mutex jobs_lock;
std::deque<std::unique_ptr<Job>> jobs;
std::atomic<Item *> slots[64];
std::atomic<long> requests, losses;
std::atomic<bool> is_over;

class Parcel : public Job {
    std::shared_ptr<Item> item;
    std::vector<std::string> lines;

  public:
    Parcel(std::shared_ptr<Item> item, long number) : item(std::move(item)), lines(number % 5, std::string(40, 'l')) {}
    void run() override { item->text.append(lines.size(), '+'); }
};

// No pointer to the block remains.
[[gnu::noipa]] void lose(long number)
{
    auto *item = new Item;
    item->text = std::string(100, 'l');
    item->amounts[0] = number;
    losses++;
}

void work_on_jobs(std::unique_ptr<Job> mine)
{
    std::unique_ptr<Job> other;
    {
        std::lock_guard guard(jobs_lock);
        jobs.push_back(std::move(mine));
        if (jobs.size() > most_jobs) {
            other = std::move(jobs.front());
            jobs.pop_front();
        }
    }
    if (other)
        other->run();
}

void request(long number, long lost)
{
    static thread_local std::unordered_map<long, std::string> recent;
    long user = number * 2654435761u % 5000;
    Shard &shard = shards[user % 4];
    auto item = shard.visit(user, number);
    shard.answer(number * 40503u % 20000, item);
    work_on_jobs(std::make_unique<Parcel>(item, number));
    auto &slot = slots[number * 97u % 64];
    delete slot.exchange(new Item{std::string(60, 's')});
    recent[number % 500] = std::string(30 + number % 40, 'r');
    if (lost > 0 && number % lost == 0)
        lose(number);
}

void serve(double rate, long lost)
{
    auto begin = std::chrono::steady_clock::now();
    for (long done = 0; !is_over;) {
        std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
        for (long due = passed.count() * rate; done < due && !is_over; done++)
            request(requests++, lost);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    long count = atol(argv[2]);
    rendezvous("started");
    std::vector<std::thread> threads;
    for (long at = 0; at < count; at++)
        threads.emplace_back(serve, atof(argv[1]) / count, atol(argv[3]));
    rendezvous("ready");
    is_over = true;
    for (auto &thread : threads)
        thread.join();
    char line[40];
    snprintf(line, sizeof(line), "lost %ld", losses.load());
    rendezvous(line);
    jobs.clear();
    for (auto &shard : shards)
        shard.clear();
    for (auto &slot : slots)
        delete slot.exchange(nullptr);
    rendezvous("cleared");
}
