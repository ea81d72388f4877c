"""What objects look like in a notebook: readable without a kernel, no errors, no waits, nothing unescaped."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
import threading
import time
from html import unescape

import distributed
import pytest
from distributed import Client
from distributed.utils_test import gen_cluster, gen_test
from helpers import until
from IPython.core.formatters import DisplayFormatter

import dask_hpc
from dask_hpc import show
from dask_hpc.show import Decisions, Jobs, Rows
from dask_hpc.wire import RPC
from dask_hpc_policies import registry
from dask_hpc_policies.combine.merge import Chain, Cooldown
from dask_hpc_policies.params import Int

#: A name that does harm in every place where it is not escaped.
EVIL = "<script>alert('x')</script>\"&"
#: Far longer than a repr may wait, far shorter than a transfer's own limits.
PATIENCE_S = 20.0


def shown(thing):
    """What a notebook keeps of `thing`: text and HTML."""
    data, _ = DisplayFormatter().format(thing)
    return data["text/plain"], data.get("text/html", "")


def check(html, *words):
    """HTML that needs no script and holds `words` as text."""
    assert "<script" not in html
    assert [word for word in words if word not in unescape(html)] == []


@pytest.fixture(scope="module")
def cluster():
    with dask_hpc.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster) as client:
        yield client


def finished_job(client, name=EVIL):
    rt = dask_hpc.runtime(client)
    with rt.job(name, min_nodes=1, max_nodes=2) as job:
        assert client.submit(len, name, pure=False).result() == len(name)
    job.wait(PATIENCE_S)
    return rt, job


def test_runtime_and_job_show_what_the_cluster_answers(client):
    rt, job = finished_job(client)
    text, html = shown(rt)
    assert text == f"<Runtime scheduler={client.scheduler.address!r} client='running'>"
    check(html, client.scheduler.address, "fair", EVIL, "completed", "Nodes", "Latest decisions")
    text, html = shown(job)
    assert text == f"<Job id={job.id!r} name={EVIL!r} min_nodes=1 max_nodes=2>"
    check(html, EVIL, "completed")


def test_a_job_that_is_not_submitted_shows_what_was_asked_for(client):
    job = dask_hpc.runtime(client).job(EVIL, nodes=2, walltime="30 min", constraint="even")
    text, html = shown(job)
    assert text == f"<Job id=None name={EVIL!r} nodes=2 constraint='even' walltime_s=1800.0>"
    check(html, EVIL, "not submitted", "1800.0", "even")


def test_lists_of_rows_are_tables_and_still_the_lists_they_were(client):
    rt, job = finished_job(client)
    for rows, kind, word in ((rt.jobs(), Jobs, "completed"), (rt.decisions(), Decisions, "start to")):
        plain = [dict(row) for row in rows]
        assert type(rows) is kind
        assert rows == plain
        assert plain == rows
        assert {type(row) for row in rows} == {dict}
        assert json.dumps(rows) == json.dumps(plain)
        assert json.loads(json.dumps(rows)) == plain
        text, html = shown(rows)
        assert text == shown(plain)[0]
        check(html, EVIL, word)
        assert type(rows[-1:]) is kind
        assert rows[-1:] == plain[-1:]
        assert rows[-1:].now_s == rows.now_s
        assert copy.deepcopy(rows) == plain
    assert type(job.why()) is Decisions
    assert {row["job"] for row in job.why()} == {job.id}


def test_ages_are_told_by_the_clock_of_the_scheduler(client):
    rt, _ = finished_job(client)
    rows = rt.decisions()
    assert rows.now_s >= max(row["t_s"] for row in rows)
    rows.now_s = rows[0]["t_s"] + 7200
    check(rows._repr_html_(), "2 h ago")
    # rows of unknown time: as of the latest of them
    check(
        Decisions([{**rows[0], "t_s": 5.0}, {**rows[0], "t_s": 65.0}])._repr_html_(), "0 s ago", "1 min ago"
    )


def test_a_cluster_shows_stock_markup_and_our_rows(cluster, client):
    finished_job(client)
    stock = distributed.LocalCluster._repr_html_(cluster)
    html = cluster._repr_html_()
    # stock's own part holds the name of the cluster as stock writes it
    assert stock.split()[:50] == html.split()[:50]
    ours = html.split('class="dask-hpc"')[1]
    check(ours, "fair", "Nodes: 2", EVIL, "completed")
    for _ in range(7):
        finished_job(client)
    # it is asked for twice a second while its widget is shown
    assert cluster._repr_html_().count("<strong>&lt;script") == 5


# a cluster that closes so soon has comms that close after it, at a load
@gen_test(timeout=60, clean_kwargs={"instances": False})
async def test_a_cluster_is_shown_inside_of_its_own_loop():
    # the widget of the stock class asks for it there, twice a second
    async with dask_hpc.LocalCluster(
        n_workers=1, processes=False, dashboard_address=None, asynchronous=True
    ) as cluster:
        check(cluster._repr_html_(), "fair", "Nodes: 1")
        # nobody needs the worker, and it stays for a while: here it is said why
        adaptive = cluster.adapt(minimum=0, maximum=1, interval="20 ms")
        await until(lambda: "hpc.pool.hold" in adaptive.reason, "it is kept")
        check(cluster._repr_html_(), "fair", "Nodes: 1", f"adapt: {adaptive.reason}")
        adaptive.stop()
        assert "adapt: " not in cluster._repr_html_()
    check(cluster._repr_html_(), "the cluster is closed")


def test_what_is_gone_is_said_with_what_was_known_last():
    with (
        dask_hpc.LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        rt, job = finished_job(client, "heat")
        rt.jobs()
        stranger = rt.find("nobody-7")
        client.close()
        began_s = time.monotonic()
        check(rt._repr_html_(), "was not asked", "is closed", "known last", "heat-1", "fair")
        check(job._repr_html_(), "was not asked", "is closed", "known last", "completed")
        check(stranger._repr_html_(), "was not asked", "nobody-7")
        assert time.monotonic() - began_s < PATIENCE_S
        assert repr(rt) == "<Runtime scheduler=None client='closed'>"
    check(cluster._repr_html_(), "There is no runtime to show: the cluster is closed.")
    assert repr(cluster)


def test_the_runtime_of_a_client_that_no_longer_exists_is_shown(cluster):
    client = Client(cluster)
    rt = dask_hpc.runtime(client)
    client.close()
    rt.channel._client = lambda: None
    assert repr(rt) == "<Runtime scheduler=None client='closed'>"
    check(rt._repr_html_(), "a closed client", "was not asked")


def test_a_scheduler_that_never_answers_is_not_waited_for(cluster, client, monkeypatch):
    rt, job = finished_job(client)
    rt.status(), rt.jobs()
    answers = cluster.scheduler.handlers[RPC]
    asked, goes_on = threading.Event(), asyncio.Event()

    async def silent(method, arguments):
        asked.set()
        await goes_on.wait()
        return await answers(method, arguments)

    async def given_up():
        while any("ask_at" in repr(task) or "picture" in repr(task) for task in asyncio.all_tasks()):
            await asyncio.sleep(0.01)

    with monkeypatch.context() as patch:
        patch.setitem(cluster.scheduler.handlers, RPC, silent)
        patch.setattr(show, "LIMIT_S", 0.05)
        for thing in (rt, job):
            asked.clear()
            check(thing._repr_html_(), "does not answer: nothing was heard for 0.05 s", "completed")
            assert asked.wait(PATIENCE_S)
            # and no question is left behind
            client.sync(given_up, callback_timeout=PATIENCE_S)
    cluster.loop.add_callback(goes_on.set)
    assert "nothing was heard" not in rt._repr_html_()


def test_a_loop_that_is_stuck_is_not_waited_for(cluster, monkeypatch):
    monkeypatch.setattr(show, "LIMIT_S", 0.05)
    stuck, goes_on = threading.Event(), threading.Event()

    def hold():
        stuck.set()
        goes_on.wait(PATIENCE_S)

    cluster.loop.add_callback(hold)
    assert stuck.wait(PATIENCE_S)
    try:
        check(cluster._repr_html_().split('class="dask-hpc"')[1], "nothing was heard for 0.05 s")
    finally:
        goes_on.set()


def test_a_loop_that_has_ended_is_not_asked():
    loop = asyncio.new_event_loop()

    async def question():
        raise AssertionError("asked")

    for end in (lambda: None, loop.close):
        end()
        with pytest.raises(ConnectionError, match="ended"):
            show._within_limit(loop, question)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_an_asynchronous_client_is_shown_without_asking(c, s, a):
    rt = await dask_hpc.install(c)
    asked = []
    ask = rt.channel.ask_at

    def counted(method, **arguments):
        asked.append(method)
        return ask(method, **arguments)

    rt.channel.ask_at = counted
    check(rt._repr_html_(), "asynchronous", "await rt.status()")
    assert asked == []
    job = rt.job(EVIL, nodes=1)
    check(job._repr_html_(), "not submitted", EVIL)
    async with job:
        check(job._repr_html_(), "asynchronous", EVIL)
    await job.wait(PATIENCE_S)
    await rt.status()
    rows = await rt.jobs()
    before = list(asked)
    check(rt._repr_html_(), "asynchronous", "known last", "fair", EVIL)
    check(job._repr_html_(), "asynchronous", "known last", "completed")
    check(rows._repr_html_(), "completed")
    assert "status" in before
    assert asked == before


def test_every_policy_is_one_line_and_a_table():
    for name in (*registry.names(), *registry.library_names()):
        policy = registry.create(name)
        text, html = shown(policy)
        assert text == repr(policy)
        assert "\n" not in text
        assert text.startswith(f"<{type(policy).__name__} name={policy.name!r}")
        for parameter, value in policy.params.items():
            assert f" {parameter}={value!r}" in text
        check(html, policy.name, *policy.params)
    rows = dask_hpc.policies()
    assert rows == registry.describe_all()
    check(shown(rows)[1], *(row["name"] for row in rows))


class Broken:
    """A user's policy that says nothing of itself without an error."""

    name = EVIL
    parameters = (Int("nodes", 1, help=EVIL),)
    params = {"nodes": EVIL}  # noqa: RUF012

    def initial_state(self):
        return None

    def decide(self, view, state):
        raise AssertionError


def test_no_repr_raises_or_leaves_anything_unescaped():
    check(Chain(Broken())._repr_html_(), EVIL, "nodes")
    check(Cooldown(Broken(), cooldown_s=60)._repr_html_(), f"Policy {EVIL}+cooldown")

    class Worse(Broken):
        params = property(lambda self: 1 / 0)

    chain = Chain(Worse())
    assert repr(chain) == "<Combined not shown: ZeroDivisionError>"
    check(chain._repr_html_(), "<Combined not shown: ZeroDivisionError>")
    check(Jobs([{EVIL: 1}])._repr_html_(), "Jobs cannot be shown")
    check(Decisions([7])._repr_html_(), "Decisions cannot be shown")
    check(Jobs()._repr_html_(), "No job yet")
    check(Decisions()._repr_html_(), "Nothing was decided yet")

    class Odd(Rows):
        @show.never_raises
        def _repr_html_(self):
            raise ValueError(EVIL)

    check(Odd()._repr_html_(), "Odd cannot be shown", EVIL)


#: Imports what the first argument names as if it were not installed; the rest is run.
_WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import dask_hpc
from dask_hpc.show import Jobs
from dask_hpc_policies import registry
if __name__ == "__main__":
    with dask_hpc.LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster:
        print(Jobs()._repr_html_() is None)
        print("fair" in cluster._repr_html_(), "LocalCluster" in cluster._repr_html_())
    print("First come" in registry.create("fcfs")._repr_html_())
    print(sys.argv[1] in sys.modules)
"""


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ("ipywidgets", ["False", "True", "True", "True", "False"]),
        # no markup: notebooks show the line of text, and of a cluster what stock shows
        pytest.param("dask_hpc_widgets", ["True", "False", "True", "True", "False"], marks=pytest.mark.slow),
    ],
)
def test_reprs_need_neither_widgets_nor_the_panel(repository, absent, said):
    roots = [str(repository), str(repository / "policies"), str(repository / "widgets")]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, absent],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(roots)),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == said


def test_displaying_a_cluster_keeps_html_beside_the_widget(cluster, monkeypatch):
    pytest.importorskip("ipywidgets")
    kept = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw=False, **kwargs: kept.append(data))
    cluster._ipython_display_()
    assert "fair" in kept[0]["text/html"]
    assert kept[0]["text/plain"] == repr(cluster)
