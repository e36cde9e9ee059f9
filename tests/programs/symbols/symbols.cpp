// Much inlined code in few lines, by the standard library's templates. Never run.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

namespace shop {

struct Item {
	std::string name;
	double price;
	std::vector<int> counts;
};

class Store {
public:
	virtual ~Store() = default;

	void add(Item item)
	{
		total += sum(item) * item.price;
		items.push_back(std::move(item));
	}

	template <typename Order> void sort(Order order)
	{
		std::sort(items.begin(), items.end(), [order](const Item &a, const Item &b) { return order(key(a), key(b)); });
	}

	std::map<std::string, double> by_name() const
	{
		std::map<std::string, double> prices;
		for (const Item &item : items)
			prices[item.name] += item.price;
		return prices;
	}

	virtual double worth() const
	{
		return total;
	}

private:
	static int sum(const Item &item)
	{
		return std::accumulate(item.counts.begin(), item.counts.end(), 0);
	}

	static double key(const Item &item)
	{
		return item.price / (1 + sum(item));
	}

	std::vector<Item> items;
	double total = 0;
};

class Discount : public Store {
public:
	double worth() const override
	{
		return Store::worth() * 0.9;
	}
};

} // namespace shop

__attribute__((noinline)) static std::unique_ptr<shop::Store> fill(int count)
{
	std::unique_ptr<shop::Store> store;
	if (count % 2)
		store = std::make_unique<shop::Discount>();
	else
		store = std::make_unique<shop::Store>();
	for (int number = 0; number < count; number++)
		store->add({"item" + std::to_string(number), 1.0 * number, std::vector<int>(number, 2)});
	return store;
}

int main(int argc, char **argv)
{
	auto store = fill(argc);
	store->sort(std::less<double>());
	std::unordered_map<std::string, std::function<double()>> actions;
	for (int number = 0; number < argc; number++)
		actions[argv[number]] = [&store, number] { return store->worth() + number; };
	double all = 0;
	for (const auto &[name, action] : actions)
		all += action();
	for (const auto &[name, price] : store->by_name())
		all += price;
	return static_cast<int>(all);
}
