/* Two functions that a linker can fold into one (--icf). */
#include <cstdlib>

struct Order {
	long values[10];
	__attribute__((noipa)) explicit Order(int first) { values[0] = first; }
};
struct User {
	long values[10];
};

template <class T> __attribute__((noipa)) T *make(int count)
{
	T *made = static_cast<T *>(malloc(sizeof(T) * count));
	__asm__ volatile("" : "+r"(made));
	return made;
}

int main()
{
	Order order(1);
	return make<Order>(1) == nullptr || make<User>(2) == nullptr || order.values[0] != 1;
}
