"""The work queue, in fake time: who gets which key, and when."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from ddpjob_operator.controller.workqueue import WorkQueue
from support import fake_time

Queue = WorkQueue[str]


def run(body: Callable[[Queue], Awaitable[None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        await body(WorkQueue(first_retry=1, longest_retry=10, time=loop.time))

    fake_time.run(main())


async def take(queue: Queue) -> tuple[str, float]:
    """The next key, worked on in no time; and when it came."""
    key = await queue.get()
    queue.done(key)
    return key, asyncio.get_running_loop().time()


def test_keys_come_in_order_and_each_once() -> None:
    async def body(queue: Queue) -> None:
        for key in "abac":
            queue.add(key)
        assert len(queue) == 3
        assert [(await take(queue))[0] for _ in range(3)] == ["a", "b", "c"]
        assert len(queue) == 0

    run(body)


def test_a_key_has_one_worker_at_a_time() -> None:
    async def body(queue: Queue) -> None:
        queue.add("a")
        assert await queue.get() == "a"
        queue.add("a")
        queue.add("a")
        queue.add("b")
        assert await queue.get() == "b"
        assert len(queue) == 1
        second = asyncio.ensure_future(queue.get())
        await asyncio.sleep(100)
        assert not second.done()
        queue.done("a")
        assert await second == "a"
        queue.done("a")
        assert len(queue) == 0

    run(body)


def test_a_key_that_nobody_added_again_is_done() -> None:
    async def body(queue: Queue) -> None:
        queue.add("a")
        await take(queue)
        queue.add("b")
        assert await take(queue) == ("b", 0)

    run(body)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([5], [5]), ([5, 3], [3]), ([3, 5], [3]), ([3, 3], [3]), ([0], [0]), ([-1], [0])],
    ids=str,
)
def test_of_several_times_the_earliest_counts(seconds: list[float], expected: list[float]) -> None:
    async def body(queue: Queue) -> None:
        for each in seconds:
            queue.add_after("a", each)
        queue.add_after("end", 100)
        came = []
        while (found := await take(queue))[0] != "end":
            came.append(found[1])
        assert came == expected

    run(body)


def test_a_time_may_be_set_again_once_it_has_come() -> None:
    async def body(queue: Queue) -> None:
        queue.add_after("a", 3)
        assert await take(queue) == ("a", 3)
        queue.add_after("a", 3)
        assert await take(queue) == ("a", 6)

    run(body)


def test_an_addition_does_not_cancel_a_later_one() -> None:
    async def body(queue: Queue) -> None:
        queue.add_after("a", 5)
        queue.add("a")
        assert await take(queue) == ("a", 0)
        assert await take(queue) == ("a", 5)

    run(body)


def test_what_comes_due_while_the_key_is_being_worked_on_is_not_lost() -> None:
    async def body(queue: Queue) -> None:
        queue.add("a")
        await queue.get()
        queue.add_after("a", 5)
        await asyncio.sleep(7)
        assert len(queue) == 1
        queue.done("a")
        assert await take(queue) == ("a", 7)

    run(body)


def test_who_waits_is_woken_by_whatever_comes_first() -> None:
    async def body(queue: Queue) -> None:
        queue.add_after("late", 50)
        waiting = asyncio.ensure_future(take(queue))
        await asyncio.sleep(1)
        queue.add_after("soon", 5)
        assert await waiting == ("soon", 6)
        waiting = asyncio.ensure_future(take(queue))
        await asyncio.sleep(1)
        queue.add("now")
        assert await waiting == ("now", 7)
        assert await take(queue) == ("late", 50)

    run(body)


def test_a_worker_that_is_cancelled_while_waiting_takes_no_key_along() -> None:
    async def body(queue: Queue) -> None:
        waiting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        queue.add("a")
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert await take(queue) == ("a", 0)

    run(body)


def test_retries_come_later_and_later_until_one_succeeds() -> None:
    async def body(queue: Queue) -> None:
        pauses = []
        for _ in range(6):
            pauses.append(queue.retry("a"))
            await take(queue)
        assert pauses == [1, 2, 4, 8, 10, 10]
        assert queue.retry("b") == 1
        await take(queue)
        queue.forget("a")
        queue.forget("never failed")
        assert queue.retry("a") == 1

    run(body)


def test_retries_have_no_end() -> None:
    async def body(queue: Queue) -> None:
        assert {queue.retry("a") for _ in range(2000)} == {1, 2, 4, 8, 10}

    run(body)


def test_a_retry_is_heard_before_the_key_is_done() -> None:
    async def body(queue: Queue) -> None:
        queue.add("a")
        key = await queue.get()
        queue.retry(key)
        queue.done(key)
        assert await take(queue) == ("a", 1)

    run(body)


def test_a_key_that_was_not_taken_cannot_be_done() -> None:
    async def body(queue: Queue) -> None:
        queue.add("a")
        with pytest.raises(KeyError):
            queue.done("a")

    run(body)


# Health


def test_nothing_waits_in_an_idle_queue() -> None:
    async def body(queue: Queue) -> None:
        assert queue.oldest_waiting() == 0
        queue.add_after("a", 50)
        await asyncio.sleep(40)
        assert queue.oldest_waiting() == 0
        assert len(queue) == 0
        await take(queue)
        assert queue.oldest_waiting() == 0

    run(body)


def test_a_key_that_nobody_takes_is_seen_to_wait() -> None:
    async def body(queue: Queue) -> None:
        queue.add_after("a", 50)
        queue.add("b")
        await asyncio.sleep(10)
        queue.add("b")
        assert queue.oldest_waiting() == 10
        await take(queue)
        await asyncio.sleep(90)
        assert queue.oldest_waiting() == 50
        assert len(queue) == 1

    run(body)


def test_a_worker_that_hangs_is_seen() -> None:
    async def body(queue: Queue) -> None:
        queue.add("a")
        await queue.get()
        await asyncio.sleep(10)
        queue.add("b")
        await take(queue)
        await asyncio.sleep(20)
        assert queue.oldest_waiting() == 30
        queue.add("a")
        await asyncio.sleep(5)
        queue.add("a")
        await asyncio.sleep(5)
        queue.done("a")
        assert queue.oldest_waiting() == 10
        assert len(queue) == 1

    run(body)


# All together


@pytest.mark.parametrize("seed", range(20))
def test_no_change_is_missed_and_no_key_has_two_workers(seed: int) -> None:
    """Workers look at a number that somebody raises; they must see it as it is in the end."""

    async def body(queue: Queue) -> None:
        chance = random.Random(seed)
        numbers, seen = dict.fromkeys("abcde", 0), dict.fromkeys("abcde", 0)
        busy: set[str] = set()

        async def work() -> None:
            while True:
                key = await queue.get()
                assert key not in busy
                busy.add(key)
                number = numbers[key]
                await asyncio.sleep(chance.random())
                if chance.random() < 0.3:
                    queue.retry(key)
                else:
                    queue.forget(key)
                    seen[key] = number
                busy.remove(key)
                queue.done(key)

        workers = [asyncio.ensure_future(work()) for _ in range(3)]
        for _ in range(200):
            key = chance.choice("abcde")
            numbers[key] += 1
            if chance.random() < 0.5:
                queue.add(key)
            else:
                queue.add_after(key, chance.random() * 3)
            await asyncio.sleep(chance.random() / 5)
        await asyncio.sleep(1000)
        assert seen == numbers
        assert queue.oldest_waiting() == 0
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert all(worker.cancelled() for worker in workers)

    run(body)
