// A host of plug-ins: loads each, has two threads work in it while the next is being loaded, unloads it, and begins again.
//
// usage: plugin_host ROUNDS PLUGIN...

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Plugin {
	void *handle;
	int (*work)(int);
	std::vector<std::thread> workers;

	explicit Plugin(const char *path) : handle(dlopen(path, RTLD_NOW | RTLD_LOCAL))
	{
		if (!handle) {
			std::fprintf(stderr, "%s\n", dlerror());
			std::exit(1);
		}
		work = reinterpret_cast<int (*)(int)>(dlsym(handle, "work"));
		for (int number = 0; number < 2; number++)
			workers.emplace_back([this, number] {
				for (int seed = 0; seed < 10; seed++)
					work(number + seed);
			});
	}
	~Plugin()
	{
		for (std::thread &worker : workers)
			worker.join();
		dlclose(handle);
	}
};

} // namespace

int main(int count, char **arguments)
{
	std::unique_ptr<Plugin> current;

	for (int round = 0; round < std::atoi(arguments[1]); round++)
		for (int number = 2; number < count; number++) {
			auto next = std::make_unique<Plugin>(arguments[number]);

			current = std::move(next);
		}
}
