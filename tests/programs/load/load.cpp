// Source for clang to compile: templates of the standard library.
#include <map>
#include <string>

int main(int count, char **words)
{
	std::map<std::string, int> numbers;
	for (int word = 0; word < count; word++)
		numbers[words[word]] = word;
	return numbers["x"];
}
