// A C++ library that is loaded and unloaded: throws exceptions, and catches them.
#include <stdexcept>
#include <string>
#include <vector>

[[gnu::noinline]] static void fall(unsigned depth)
{
	std::vector<std::string> held(3, std::string(30 + depth, 'h'));

	if (depth == 0)
		throw std::out_of_range(std::string(50, 'o'));
	fall(depth - 1);
	held.clear();
}

extern "C" int use()
{
	try {
		fall(20);
		return 1000;
	} catch (const std::out_of_range &error) {
		return std::string(error.what()).size();
	}
}
