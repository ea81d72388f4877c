"""The panel in a real Jupyter kernel, with a client that plays the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import nbconvert
import nbformat
import pytest
import real_kernel
from real_kernel import CellError, RealKernel

CLUSTER = """
import time
import ipywidgets
import dask_hpc
from distributed import Client

cluster = dask_hpc.LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0")
client = Client(cluster)
rt = dask_hpc.install(client, policy="fcfs", tick="50 ms")
"""
OPEN = """
panel = rt.panel()
shows, show = [], panel._link._show
def noted(function):
    shows.append(time.monotonic())
    show(function)
panel._link._show = noted
panel
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[RealKernel]:
    with real_kernel.started() as made:
        made.run(CLUSTER)
        yield made
        made.run("client.close()\ncluster.close()")


@pytest.fixture
def opened(kernel: RealKernel) -> Iterator[RealKernel]:
    kernel.run("rt.update(policy='fcfs')\nbefore = set(ipywidgets.widgets.widget._instances)")
    kernel.heard.clear()
    kernel.run(OPEN)
    yield kernel
    kernel.run("panel.close()")
    assert kernel.value("set(ipywidgets.widgets.widget._instances) == before")


def goes_on(kernel: RealKernel) -> None:
    """Updates are still shown."""
    count = kernel.value("len(shows)")
    kernel.until(f"len(shows) > {count + 1}")


def test_a_page_drives_it_by_messages_and_nothing_is_left_of_it(opened):
    twin, result = (content["data"] for kind, content in opened.heard if kind == "display_data")
    assert result["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert "decides: <strong>fcfs</strong>" in twin["text/html"], "the static twin"
    opened.run(
        "with rt.job('heat', nodes=2, min_nodes=1, max_nodes=2):\n"
        "    naps = client.map(time.sleep, [0.05] * 400, pure=False, key='nap')"
    )
    opened.until("'heat' in str(panel.tables.whole())")
    opened.until("any(row['nodes'] == 2 and row['phases'][0]['tasks'] > 3 for row in rt.jobs())")
    choices = opened.value("[value for _, value in panel.tuning.form.policy.options]")
    opened.type("panel.tuning.form.policy", choices.index("pwma-fpsma"), "index")
    opened.click("panel.tuning.simulate")
    assert "Predicted effect" in opened.until("panel.tuning.predicted.value")
    assert opened.value("rt.status()['policy']['policy']") == "fcfs"
    name = opened.value(
        "[n for n, c in panel.tuning.form.controls.items() if isinstance(c, ipywidgets.Text)][0]"
    )
    good = opened.value(f"panel.tuning.form.controls[{name!r}].value")
    opened.type(f"panel.tuning.form.controls[{name!r}]", "garbage")
    assert 'role="alert"' in opened.value(f"panel.tuning.form.says[{name!r}].value")
    opened.click("panel.tuning.apply")
    assert opened.value("rt.status()['policy']['policy']") == "fcfs"
    opened.type(f"panel.tuning.form.controls[{name!r}]", good)
    opened.click("panel.tuning.apply")
    opened.until("'Applied' in panel.tuning.says.value")
    assert opened.value("rt.status()['policy']['policy']") == "pwma-fpsma"
    opened.click("panel.tuning.revert")
    opened.until("'Reverted' in panel.tuning.says.value")
    assert opened.value("rt.status()['policy']['policy']") == "fcfs"
    goes_on(opened)
    opened.click("panel.end")
    opened.run("naps.clear()")
    # what was opened on the page is closed there
    counts = Counter(kind for kind, _ in opened.heard)
    assert counts["comm_open"] == counts["comm_close"] > 50
    assert not [content for kind, content in opened.heard if kind == "error"]
    left = "[t.name for t in __import__('threading').enumerate() if t.name.startswith('dask-hpc')]"
    opened.until(f"not {left}")


def test_a_panel_begins_with_what_a_page_does_not_take_for_granted(opened):
    states = [content["data"]["state"] for kind, content in opened.heard if kind == "comm_open"]
    layouts = [one for one in states if one["_model_name"] == "LayoutModel"]
    assert not [name for one in layouts for name, value in one.items() if value is None and name[0] != "_"]
    assert all("_view_module_version" in one for one in layouts)
    # widgets share what is alike, but no layout that hides one of them
    users = Counter(one[part] for one in states for part in ("layout", "style") if part in one)
    assert sum(users.values()) > 100 > 2 * len(users)
    every = "ipywidgets.widgets.widget._instances.values()"
    hides = f"[w.layout.model_id for w in {every} if getattr(w, 'layout', None) and w.layout.display]"
    hidden = [f"IPY_MODEL_{id}" for id in opened.value(hides)]
    assert len(hidden) >= 5
    assert {users[one] for one in hidden} == {1}


@pytest.mark.parametrize(
    "cell",
    [
        "print('begun', flush=True)\nwhile True:\n    pass",
        pytest.param(
            "print('begun', flush=True)\nimport asyncio\nawait asyncio.sleep(600)", marks=pytest.mark.slow
        ),
        pytest.param(
            "print('begun', flush=True)\nclient.submit(time.sleep, 2, pure=False).result()\ntime.sleep(600)",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["busy", "awaiting", "waiting for a result"],
)
def test_a_cell_that_is_interrupted_leaves_the_panel_as_it_was(opened, cell):
    goes_on(opened)
    running = opened.begin(cell)
    opened.hear(lambda kind, content: kind == "stream" and "begun" in content["text"])
    opened.interrupt()
    with pytest.raises(CellError, match=r"KeyboardInterrupt|CancelledError"):
        opened.end(running)
    goes_on(opened)
    opened.run("rt.update(policy='easy')")
    opened.until("'easy' in panel.head.value")
    assert opened.value("panel.trouble") == ""


@pytest.mark.slow
def test_a_kernel_with_an_open_panel_ends_when_it_is_told_to():
    with real_kernel.started() as made:
        made.run(CLUSTER)
        made.run(OPEN)
        goes_on(made)
        made.manager.shutdown_kernel(now=False)
        assert not made.manager.is_alive()


@pytest.mark.slow
def test_a_panel_lives_through_a_scheduler_that_is_started_again_on_its_address():
    with real_kernel.started() as made:
        made.run(
            "import time, dask_hpc\nfrom distributed import Client\n"
            "def start(port):\n"
            "    return dask_hpc.LocalCluster(n_workers=1, threads_per_worker=1, processes=False,\n"
            "        protocol='tcp://', scheduler_port=port, dashboard_address=':0')\n"
            "cluster = start(0)\naddress = cluster.scheduler_address\n"
            "client = Client(address)\nrt = dask_hpc.install(client, policy='fcfs')"
        )
        made.run(OPEN)
        goes_on(made)
        made.run("cluster.close()")
        made.until("panel.trouble")
        assert 'role="alert"' in made.value("panel.head.value")
        made.run("cluster = start(int(address.rpartition(':')[2]))")
        made.until("not panel.trouble")
        made.run("rt.update(policy='easy')")
        made.until("'easy' in panel.head.value")
        # a connection that is cut is made again
        connected = "client.status == 'running' and client.scheduler_comm is not None"
        made.until(connected)
        made.run("cut = client.scheduler_comm.comm\nclient.loop.add_callback(cut.abort)")
        made.until(f"{connected} and client.scheduler_comm.comm is not cut")
        goes_on(made)
        made.until("not panel.trouble")
        made.run("panel.close()\nclient.close()\ncluster.close()")


def test_an_exported_notebook_shows_the_static_twin(opened):
    opened.run("with rt.job('heat', nodes=1):\n    naps = client.map(time.sleep, [0.05] * 400, pure=False)")
    opened.until("rt.find('heat').status()['state'] == 'running'")
    opened.heard.clear()
    opened.run("twin = rt.panel()\ntwin")
    opened.run("twin.close()\nnaps.clear()")
    shown = [content for kind, content in opened.heard if kind == "display_data"]
    (kept,) = [content for kind, content in opened.heard if kind == "update_display_data"]
    assert "application/vnd.jupyter.widget-view+json" in shown[1]["data"]
    assert kept["transient"] == shown[0]["transient"], "closing keeps the latest in the cell"
    outputs = [nbformat.v4.new_output("display_data", data=one["data"]) for one in (kept, shown[1])]
    cell = nbformat.v4.new_code_cell("runtime.panel()", outputs=outputs, execution_count=1)
    # without the state of widgets, as notebooks are kept
    page, _ = nbconvert.HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert "<strong>heat</strong>" in page
    assert "decides: <strong>fcfs</strong>" in page
    assert "The settings are those that run." in page
