// Work at a fixed rate, whatever the load of the machine: does all work that is due, then sleeps for a millisecond.
#include <time.h>

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

// Calls work(number) per_second times a second, forever.
static inline void at_rate(double per_second, void (*work)(long number))
{
    const struct timespec nap = {0, 1000000};
    double begin = now_seconds();
    for (long done = 0;;) {
        for (long due = (now_seconds() - begin) * per_second; done < due; done++)
            work(done);
        nanosleep(&nap, NULL);
    }
}
