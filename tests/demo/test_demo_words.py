"""What the demo says about what its acts gave: table, quote, what did not pay, errors, exit code."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dask_hpc.demo import parts, run
from dask_hpc.demo.heat import peak_and_checksum
from dask_hpc.demo.killed import Killed
from dask_hpc.demo.shrinking import HELD, Shrunk
from dask_hpc.demo.simulation import HEAT, InSituLook, Simulated
from dask_hpc.demo.stepping import Stepped
from dask_hpc.demo.three_users import JOBS
from dask_hpc.demo.users import Served
from dask_hpc.trace.records import Header


def simulated(*, steps: int = 3, in_situ: bool = True) -> Simulated:
    """A simulation that took three steps and says that it took `steps`."""
    windows = [{"result": "done"}, {"result": "aborted"}, {"result": "done"}]
    seen = ((1, peak_and_checksum(HEAT.undisturbed(1).values)),)
    return Simulated(HEAT.undisturbed(3), steps, (InSituLook(2, 0.1, 0.9, in_situ),), tuple(windows), seen)


STEPPED = Stepped(
    simulated=simulated(), simulation_s=5.0, answer=25, turnaround_s=1.0, repeated=0, killed=False
)
KILLED = Killed(lost=0, wrong=0, repeated=0, recovery_s=1.0, commit_s=0.5)
SHRUNK = Shrunk(lost=0, wrong=0, repeated=0, actor_answers=True, shrink_s=1.0, nodes=2)


def served(result: int = 5, turnaround_s: float = 4.0) -> dict[str, Served]:
    """All jobs of the three users, with the same result and turnaround."""
    return {
        job.name: Served(
            user=job.user,
            name=job.name,
            at_s=job.at_s,
            submitted_s=job.at_s,
            end_s=job.at_s + turnaround_s,
            results=(described(job.workload, result),),
        )
        for job in JOBS
    }


def described(workload: str, number: int):
    """A result that the workload can describe."""
    if workload == "option":
        return {"price": float(number), "standard_error": 0.1, "paths": 2}
    if workload == "el-nino":
        return {"trend": float(number), "lower": 0.1, "upper": 0.2, "replicates": 2}
    return number


def given(served=None, stepped=None, killed=KILLED, shrunk=None) -> dict[str, object]:
    """What four acts have given."""
    return {
        "three-users": served or SERVED,
        "stepping": stepped or STEPPED,
        "killed": killed,
        "shrinking": shrunk or SHRUNK,
    }


SERVED = served()
STOCK = given(
    served(turnaround_s=10.0),
    replace(STEPPED, repeated=60, turnaround_s=2.0, simulation_s=9.0, killed=True),
    replace(KILLED, lost=5, repeated=9),
    replace(SHRUNK, lost=20, repeated=61, actor_answers=False),
)


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """Runs a demo whose acts give what is given; gives its exit code."""

    def fake(stock, managed, **options) -> int:
        if isinstance(managed, dict):
            stock, managed = [stock], [managed]
        stock, managed = iter(stock), iter(managed)
        monkeypatch.setattr(run, "run_stock", lambda *_: next(stock))
        monkeypatch.setattr(run, "run_managed", lambda *_: (next(managed), [Header()]))
        return run.main(report=tmp_path / "r.html", **options)

    return fake


@pytest.mark.parametrize(
    ("managed", "complaint"),
    [
        (given(), None),
        (given(served(6)), "the results of el-nino, option, primes-1, primes-2, primes-3 differ"),
        (given(stepped=replace(STEPPED, answer=26)), "the answer beside the simulation differs"),
        (
            given(stepped=replace(STEPPED, simulated=simulated(steps=4))),
            "field DIFFERENT from that of an undisturbed run of 4",
        ),
        (
            given(stepped=replace(STEPPED, simulated=replace(simulated(), coupled=((1, (1.0, 2)),)))),
            "1 coupled analyses NOT as computed afterwards",
        ),
        (
            given(killed=replace(KILLED, lost=1)),
            "1 of 60 protected objects were lost when a worker was killed",
        ),
        (given(killed=replace(KILLED, wrong=2)), "2 protected objects are wrong"),
        (given(shrunk=replace(SHRUNK, lost=1)), f"1 of {HELD} results and scattered objects were lost"),
        (given(shrunk=replace(SHRUNK, wrong=2)), "2 results are wrong after the cluster shrank"),
        (given(shrunk=replace(SHRUNK, actor_answers=False)), "the actor was lost"),
    ],
)
def test_exit_code_tells_whether_something_differs_or_was_lost(faked, tmp_path, capsys, managed, complaint):
    differs = managed["three-users"] is not SERVED
    for as_json in (False, True):
        assert faked(STOCK, managed, as_json=as_json) == (1 if complaint else 0)
        out, err = capsys.readouterr()
        assert complaint in err if complaint else not err.count("Error")
        assert ("DIFFERS" in out) == (differs and not as_json)
        assert as_json or "resized 2 times" in out
    assert json.loads(out)["three-users"]["results_equal"] is not differs
    assert json.loads(out)["stepping"]["resized"] == [2]
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert ("NOT equal to stock Dask" in page) == differs


def test_the_last_lines_are_the_table_and_what_a_newcomer_quotes(faked, capsys):
    assert faked(STOCK, given()) == 0
    out = capsys.readouterr().out
    assert "Did not pay" not in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[-15:] == [
        "",
        "stock Dask dask-hpc",
        "three users: mean turnaround 10.0 s 4.0 s",
        "three users: makespan 28.0 s 22.0 s",
        "simulation: resized while it steps 2 2",
        "simulation: time for its steps 9.0 s 5.0 s",
        "simulation: a question beside it 2.0 s 1.0 s",
        "walltime ends: tasks computed twice 60 0",
        "worker killed: results and data lost 5 of 60 0 of 60",
        "worker killed: tasks computed twice 9 0",
        "shrinking: results and data lost 20 of 60 0 of 60",
        "shrinking: tasks computed twice 61 0",
        "shrinking: the actor is lost answers",
        "",
        "mean turnaround 10.0 to 4.0 s, makespan 28.0 to 22.0 s, 0 tasks computed twice when a walltime "
        "ends where stock repeats 60, 0 of 60 results lost where stock loses 20 and repeats 61 tasks",
    ]


def test_several_rounds_give_medians_and_spread(faked, capsys):
    ours = [given(served(turnaround_s=seconds)) for seconds in (3.0, 5.0, 4.0)]
    assert faked([STOCK] * 3, ours, repeat=3) == 0
    out = capsys.readouterr().out
    assert "median of 3 (spread)" in out
    assert "three users: mean turnaround" in out
    assert " 10.0 s  " in out
    assert " 4.0 s (3.0 s to 5.0 s)" in out
    # one round in which something was lost is enough
    ours[1] = given(shrunk=replace(SHRUNK, lost=1))
    assert faked([STOCK] * 3, ours, repeat=3, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["shrinking"]["lost"] == [0, 1, 0]


@pytest.mark.parametrize(
    ("managed", "told"),
    [
        (given(served(turnaround_s=11.0)), "the mean turnaround of three users did not fall: 10.0 to 11.0 s"),
        (given(served(turnaround_s=13.0)), "the makespan of three users grew: 28.0 to 31.0 s"),
        (given(stepped=replace(STEPPED, simulation_s=10.0)), "the simulation took longer: 9.0 to 10.0 s"),
        (given(stepped=replace(STEPPED, turnaround_s=3.0)), "the question beside the simulation took longer"),
        (given(stepped=replace(STEPPED, simulated=simulated(in_situ=False))), "analytics did not all run on"),
        (given(stepped=replace(STEPPED, repeated=4)), "4 tasks were computed twice when a walltime ended"),
        (given(killed=replace(KILLED, repeated=2)), "2 protected tasks were computed again when a worker"),
        (
            given(killed=replace(KILLED, problem="no room")),
            "nothing was protected when a worker was killed: no",
        ),
        (given(killed=None), "no worker was killed: the nodes are no processes of this machine"),
        (given(shrunk=replace(SHRUNK, repeated=3)), "3 tasks were computed twice when the cluster shrank"),
        (given(shrunk=replace(SHRUNK, nodes=3)), "the cluster kept more than 2 nodes"),
    ],
)
def test_what_did_not_pay_is_said_and_is_no_error(faked, capsys, managed, told):
    assert faked(STOCK, managed) == 0
    assert told in capsys.readouterr().out.split("Did not pay on this machine:")[1]


def test_no_advantage_is_claimed_where_stock_loses_nothing(faked, capsys):
    assert faked(given(), given()) == 0
    out = capsys.readouterr().out
    assert "stock Dask lost nothing and repeated nothing either when its cluster shrank" in out
    assert "stock Dask lost nothing and repeated nothing either when a worker was killed" in out
    assert "stock Dask repeated nothing either when a walltime ended" in out


def test_where_ours_loses_every_row_is_said_as_a_loss_and_nothing_is_quoted(faked, capsys):
    # what stock gave and what ours gave, the other way round
    assert faked(given(), STOCK) == 1
    out, err = capsys.readouterr()
    assert "where stock" not in out
    last, told = out.split("\nDid not pay on this machine:\n")
    assert last.rstrip().splitlines()[-1].split() == ["shrinking:", "the", "actor", "answers", "is", "lost"]
    assert [line.strip() for line in told.splitlines()] == [
        "the mean turnaround of three users did not fall: 4.0 to 10.0 s",
        "the makespan of three users grew: 22.0 to 28.0 s",
        "60 tasks were computed twice when a walltime ended",
        "stock Dask repeated nothing either when a walltime ended",
        "the simulation took longer: 5.0 to 9.0 s",
        "the question beside the simulation took longer: 1.0 to 2.0 s",
        "9 protected tasks were computed again when a worker was killed",
        "stock Dask lost nothing and repeated nothing either when a worker was killed",
        "61 tasks were computed twice when the cluster shrank",
        "stock Dask lost nothing and repeated nothing either when its cluster shrank",
    ]
    assert err.count("Error: ") == 3
    assert "the actor was lost" in err
    assert "5 of 60 protected objects were lost" in err
    assert "20 of 60 results and scattered objects were lost" in err


@pytest.mark.parametrize(
    ("managed", "quoted"),
    [
        (given(stepped=replace(STEPPED, repeated=60)), "walltime"),
        (given(served(turnaround_s=10.0)), "mean turnaround"),
        (given(shrunk=replace(SHRUNK, lost=20)), "results lost"),
        (given(shrunk=replace(SHRUNK, repeated=1)), "and repeats"),
    ],
)
def test_what_has_not_paid_is_not_quoted(faked, capsys, managed, quoted):
    sentences = []
    for ours in (given(), managed):
        faked(STOCK, ours)
        sentences.append(capsys.readouterr().out.split("shrinking: the actor")[1].split("Did not pay")[0])
    assert [quoted in sentence for sentence in sentences] == [True, False]


def test_a_part_of_the_demo_is_one_registration(faked, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(parts, "_parts", list(parts._parts))

    def energy(ran: parts.DemoRun) -> parts.Verdict:
        text = f"{len(ran.managed[-1])} acts, 7 J"
        return parts.Verdict(
            results={"energy": text},
            notes={"Energy": text},
            summary={"energy_j": 7},
            errors=["energy: too much"],
        )

    parts.register(energy)
    assert faked(STOCK, given()) == 1
    out, err = capsys.readouterr()
    assert "  energy      4 acts, 7 J\n" in out
    assert f"Error: energy: too much; the report {tmp_path / 'r.html'} shows the run\n" in err
    assert "<strong>Energy</strong>: 4 acts, 7 J" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert faked(STOCK, given(), as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["energy_j"] == 7
