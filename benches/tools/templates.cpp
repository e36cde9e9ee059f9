// Source that clang compiles in benches/tools: little code, many templates.
#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>

template <int N>
struct Node {
    std::map<std::string, std::vector<Node<N - 1>>> children;
    std::function<int(int)> change;

    int sum() const {
        int total = 0;
        for (const auto &[name, nodes] : children)
            for (const auto &node : nodes)
                total += change(node.sum()) + static_cast<int>(name.size());
        return total;
    }
};

template <>
struct Node<0> {
    int value;
    int sum() const { return value; }
};

int sum_of(const std::unordered_map<std::string, Node<4>> &nodes, const std::string &pattern) {
    std::regex wanted(pattern);
    int total = 0;
    for (const auto &[name, node] : nodes)
        if (std::regex_match(name, wanted))
            total += node.sum();
    return total;
}
