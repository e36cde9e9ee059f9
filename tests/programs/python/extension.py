# Serves requests by an extension that keeps a block for each.
#
# usage: extension.py DIRECTORY       where the extension is
import sys

sys.path.insert(0, sys.argv[1])
import extension


class Service:
    def answer(self, request):
        extension.keep(request)


def handle(requests):
    service = Service()
    for request in requests:
        service.answer(request)


print("ready", flush=True)
sys.stdin.readline()
handle([400_000] * 40)
print("done", flush=True)
sys.stdin.readline()
