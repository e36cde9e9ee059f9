"""Code whose tables of lines are awkward."""


def backwards(call):
    return call(
        1,
        call(
            2,
            call),
    ).other(
        call
    )


def far(call):
    call()












































































































































































































































































































    call()
    for each in call(
        1,
        2,












































































































































        call,
    ):
        call(each)


def long(call):
    call()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()()
    call()


def no_line(call):
    with call() as other:
        try:
            other()
        except ValueError as error:
            other(error)
        finally:
            call()
    return lambda: [each for each in call]


def generator(call):
    while True:
        try:
            got = yield call
        except (KeyError, ValueError):
            continue
        if got:
            break
    else:
        return 1


async def coroutine(call):
    async with call as other:
        await other
    async for each in call:
        yield each


class Within(
    object,
):
    name = "value"

    @property
    @staticmethod
    def method(
        self,
        other=(lambda: 1),
    ):
        assert other, (
            self
        )
