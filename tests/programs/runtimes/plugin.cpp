// A C++ plug-in: allocates when it is loaded, in work on any thread, and when it is unloaded. PLUGIN is its number.

#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

struct Registry {
	std::map<int, std::string> names;
	std::vector<std::unique_ptr<std::vector<int>>> tables;

	Registry()
	{
		for (int number = 0; number < 40; number++) {
			names[number] = std::string(20 + PLUGIN, 'a' + number % 26);
			tables.push_back(std::make_unique<std::vector<int>>(number + PLUGIN));
		}
	}
	~Registry()
	{
		std::ostringstream farewell;
		farewell << "plug-in " << PLUGIN << " with " << names.size() << " names and more than fits into the string itself";
		names[-1] = farewell.str();
	}
};

Registry registry;

int nested(int depth)
{
	std::vector<int> kept(depth + 8, depth);

	if (depth)
		return nested(depth - 1) + kept[depth];
	throw std::runtime_error(std::string(64, 'x'));
}

} // namespace

extern "C" int work(int seed)
{
	std::regex pattern("(a|b)*c" + std::to_string(PLUGIN));
	int matches = std::regex_match("ababc" + std::to_string(seed % 8), pattern);

	try {
		return nested(seed % 20);
	} catch (const std::runtime_error &error) {
		return matches + int(std::string(error.what()).size()) + int(registry.names.size());
	}
}
