"""What it costs to wake up while plain tasks are there, and to hand them back: CPU of the scheduler's loop.

The first job makes every plain task one of the default job; the end of the last gives them back.
"""

from __future__ import annotations

import statistics

from harness import Options, Row, main, row
from machine import Graph, Machine, counted_turns, fresh_turns, run_async, until, without_gc


def run(options: Options) -> list[Row]:
    rows = []
    for tasks in options.pick((4000, 100_000), (4000, 100_000), (500,)):
        samples = [run_async(_wake(tasks)) for _ in range(options.pick(5, 3, 1))]
        for i, text in enumerate(("first job", "end of the last job")):
            longest = [sample[2 * i] for sample in samples]
            total = [sample[2 * i + 1] for sample in samples]
            count = statistics.median(sample[4 + i] for sample in samples)
            note = f"{statistics.median(total) * 1e3 / tasks:.1f} us a task, {count:g} turns"
            rows.append(row(f"{tasks} plain tasks, {text}: longest turn", longest, "ms"))
            rows.append(row(f"{tasks} plain tasks, {text}: all turns", total, "ms", note=note))
    return rows


async def _wake(tasks: int) -> tuple[float, float, float, float, int, int]:
    async with Machine(16, 4) as machine:
        engine = machine.install()
        await machine.submit(Graph("roots", tasks, "plain"))
        assert len(machine.inbox) == 16 * 5
        with without_gc():
            await fresh_turns()
            job = await machine.queue_job("first", nodes=8)
            owner = engine.state.owner
            await until(lambda: len(owner) == tasks and engine.controller.enabled, "the end of adoption")
            taken = await counted_turns()
        plain = engine.state.plain[0]
        assert plain.held + plain.processing == tasks
        # workers of the job give back what they have not started
        machine.give_back()
        while job.state != "running":
            machine.answer(*machine.inbox.popleft())
            await until(lambda: bool(machine.inbox) or job.state == "running", "the next task")
        with without_gc():
            await fresh_turns()
            await machine.end_job(job)
            await until(lambda: not engine.awake and not owner, "sleep")
            handed = await counted_turns()
        assert not machine.scheduler.unrunnable
        return (
            max(taken) * 1e3,
            sum(taken) * 1e3,
            max(handed) * 1e3,
            sum(handed) * 1e3,
            len(taken),
            len(handed),
        )


if __name__ == "__main__":
    main("adopt", "Waking up beside plain tasks: CPU milliseconds of the scheduler's loop", run)
