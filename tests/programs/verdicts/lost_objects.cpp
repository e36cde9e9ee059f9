/* Loses objects of a class with virtual functions, each with a separate text, before anything looks at its memory. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
#include "../handshake.h"
#include "../keep.h"
}

namespace shop {

struct Session {
	char *text = static_cast<char *>(malloc(200));

	virtual ~Session() { free(text); }
};

}

NOINLINE static void lose()
{
	static shop::Session *volatile last;

	last = new shop::Session;
	memset(last->text, 1, 200);
	last = nullptr;
}

int main()
{
	for (int object = 0; object < 50; object++)
		lose();
	rendezvous("ready");
}
