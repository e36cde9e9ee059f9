/*
 * Objects of known classes, its own and the C++ library's, and blocks that are no objects. After a line it makes them,
 * and says `ADDRESS CLASS` for each object, by its typeid; then `ready`.
 */
#include <cxxabi.h>
#include <cstdio>
#include <cstring>
#include <new>
#include <sstream>
#include <string>
#include <typeinfo>

#include <utility>
#include <vector>
#include "../handshake.h"

#define KEEP __attribute__((noinline, noclone))

namespace shop {

struct Item {
	virtual ~Item() {}
	virtual int price() { return 1; }
	long number = 1;
};

struct Book : Item {
	int price() override { return 2; }
};

struct Tracked {
	virtual void track() {}
	virtual ~Tracked() {}
};

/* Its second base has a separate table. */
struct Parcel : Book, Tracked {
};

/* Its table is not at the beginning of the symbol, since its base is virtual. */
struct Lent : virtual Item {
	virtual void give_back() {}
};

template <class T> struct Shelf : Item {
	T content[3] = {};
};

struct Many : Item {
};

struct Plain {
	const void *first;
	long number;
};

}

namespace {

struct Local : shop::Item {
};

}

static std::vector<std::pair<void *, std::string>> made;
static void *volatile kept;

template <class T> static void keep(T *object)
{
	int status;
	char *name = abi::__cxa_demangle(typeid(*object).name(), nullptr, nullptr, &status);

	made.emplace_back(object, name);
	free(name);
	kept = object;
}

template <class T> KEEP static void make(int count)
{
	for (int number = 0; number < count; number++)
		keep(new T);
}

/* All from one site: every second one is a Book, the others begin with an address that is no table. */
KEEP static void *allocate()
{
	return operator new(sizeof(shop::Book));
}

KEEP static void make_mixed(int count)
{
	for (int number = 0; number < count; number++) {
		void *block = allocate();

		switch (number % 4) {
		case 0:
			memset(block, 0, sizeof(shop::Book));
			break;
		case 1:
			/* The address of a function. */
			new (block) shop::Plain{reinterpret_cast<void *>(&make_mixed), 1};
			break;
		default:
			keep(new (block) shop::Book);
		}
	}
}

KEEP static void make_plain(int count)
{
	for (int number = 0; number < count; number++) {
		const std::type_info &type = typeid(shop::Book);

		/* The address of type information, which is not a table. */
		kept = new shop::Plain{&type, 1};
	}
}

int main()
{
	say("started");
	await_line();
	make<shop::Item>(11);
	make<shop::Book>(12);
	make<shop::Parcel>(13);
	make<shop::Lent>(14);
	make<shop::Shelf<double>>(15);
	make<Local>(16);
	make<std::stringbuf>(17);
	make<std::ostringstream>(18);
	make<shop::Many>(5000);
	make_mixed(40);
	make_plain(21);
	for (const auto &[address, name] : made)
		printf("%p %s\n", address, name.c_str());
	fflush(stdout);
	rendezvous("ready");
	return 0;
}
