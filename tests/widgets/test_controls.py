"""What widgets of ours do otherwise than those of ipywidgets."""

from __future__ import annotations

import asyncio
import re
import threading

from dask_hpc_widgets.base import controls, markup


def test_a_click_that_comes_in_another_thread_is_taken_in_the_loop_of_the_kernel():
    """Kernels may take messages of widgets beside cells, where one would meet an update half done."""
    click = {"content": {"data": {"method": "custom", "content": {"event": "click"}}}, "buffers": []}
    taken = []

    async def kernel():
        button = controls.Button()
        button.on_click(lambda _: taken.append(threading.get_ident()))
        beside = threading.Thread(target=button._handle_msg, args=(click,))
        beside.start()
        beside.join()
        assert taken == [], "it waits for the loop"
        await asyncio.sleep(0)
        button._handle_msg(click)

    asyncio.run(kernel())
    assert taken == [threading.get_ident()] * 2


def test_widgets_that_are_made_together_share_what_is_alike_and_nothing_that_hides_one():
    with controls.alike():
        one, other = (controls.Button(layout={"width": "auto"}) for _ in range(2))
        hidden = [controls.Button(layout={"width": "auto", "display": None}) for _ in range(2)]
    alone = controls.Button(layout={"width": "auto"})
    assert one.layout is other.layout
    assert one.style is other.style
    assert len({id(button.layout) for button in (one, *hidden, alone)}) == 4
    assert alone.style is not one.style
    hidden[0].layout.display = "none"
    assert hidden[1].layout.display is None


def test_a_job_is_called_by_its_name_and_its_id_and_by_an_id_alone_once():
    assert re.sub("<[^>]*>", " ", markup.named("heat", "j-1")).split()[-2:] == ["heat", "j-1"]
    for name in ("", "j-1"):
        assert re.sub("<[^>]*>", " ", markup.named(name, "j-1")).split().count("j-1") == 1


def test_a_bar_never_leaves_its_place():
    assert markup.bar(1.3) == markup.bar(1.0) != markup.bar(0.5)
    assert markup.bar(-0.1) == markup.bar(0.0)
