// Calls out of inlined code: each allocation is two inlined functions deep. Never leaks; is never run.
#include <cstdlib>

// Written so that no allocation is optimised away and none is a tail call.
static void *volatile last;

namespace store {
struct Cache {
	static void *grow(std::size_t bytes)
	{
		void *block = std::malloc(bytes);
		last = block;
		return block;
	}
	void *add(int entries)
	{
		return grow(entries * sizeof(long));
	}
};
} // namespace store

__attribute__((noipa)) void *fill(store::Cache &cache, int entries)
{
	void *first = cache.add(entries);
	void *second = cache.add(entries + 1);
	std::free(second);
	return first;
}

template <typename T> __attribute__((noinline)) T *make(T value)
{
	return new T(value);
}

int main(int argc, char **)
{
	store::Cache cache;
	void *block = fill(cache, argc);
	std::free(block);
	delete make<long>(argc);
	return 0;
}
