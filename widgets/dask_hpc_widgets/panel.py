"""The panel: a cluster as it is, and the policy that decides about it, to be tuned.

Rules of the file: puts the parts together. What is shown comes from the registered views, what is changed
goes through `tuning`, and only `link` crosses threads.
"""

from __future__ import annotations

import functools
import importlib
import threading
import time
from typing import Any

from dask_hpc.client import notices
from dask_hpc.client.runtime import Runtime
from dask_hpc_policies.params import ParameterError
from dask_hpc_policies.wording import counted
from dask_hpc_widgets import views
from dask_hpc_widgets.base import background, markup
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.base.markup import Markup, element
from dask_hpc_widgets.forms.fields import below
from dask_hpc_widgets.forms.model import PolicyModel, title
from dask_hpc_widgets.forms.settings_model import SettingsModel
from dask_hpc_widgets.live import questions, why
from dask_hpc_widgets.live.acts import Acts
from dask_hpc_widgets.live.code import CodePart, code
from dask_hpc_widgets.live.corridor import CorridorPart
from dask_hpc_widgets.live.examples import Examples
from dask_hpc_widgets.live.record import Record
from dask_hpc_widgets.live.settings import SettingsPart
from dask_hpc_widgets.live.tables import TablesPart
from dask_hpc_widgets.live.timeline import TimelinePart
from dask_hpc_widgets.live.try_all import TryAll
from dask_hpc_widgets.live.tuning import Tuning
from dask_hpc_widgets.views import Picture, View

#: Least time between two updates.
PERIOD_S = 0.5
#: Views that are shown when a panel is opened, by name.
_OPEN = ("jobs", "sizes", "decisions")
#: Notices that are shown at a time, the latest, and remembered.
_NOTICES, _REMEMBERED = 3, 200
#: How a record names its time.
_CLOCK = "%Y-%m-%d at %H:%M:%S (UTC%z)"
_FULL = {"width": "auto"}
_parted = functools.lru_cache(maxsize=8)(markup.part)  # heads seldom change


def opened(runtime: Runtime) -> Any:
    """A panel of the cluster of `runtime`; an awaitable of one when its client is asynchronous."""
    client: Any = runtime.client
    if not client.asynchronous:
        return Panel(runtime, client.sync(questions.picture, runtime))

    async def later() -> Panel:
        return Panel(runtime, await questions.picture(runtime))

    return later()


class Panel(widgets.VBox):  # type: ignore[misc]
    """The panel of one cluster, as a widget. Made by ``runtime.panel()``.

    It shows what is new at most twice a second while a kernel's loop runs, until `close`. Where widgets are
    not shown (an exported notebook, a page on GitHub) its static twin is: `html`.
    """

    @widgets.alike()
    def __init__(self, runtime: Runtime, picture: Picture) -> None:
        self._runtime = runtime
        self._link = Link(runtime.client)
        self.picture = picture
        #: Address of Dask's dashboard; empty when there is none.
        self._dashboard = _dashboard(runtime.client)
        #: Why there is nothing new; empty when there is.
        self.trouble = ""
        #: What is told in any thread (head, notices, views), and why that is not of now.
        self._newest = picture, ""
        self._lock = threading.Lock()
        #: When it was like that, in seconds since 1970.
        self._at_s = time.time()
        #: Nodes over time, drawn in the browser: what was, what is, what is predicted.
        self.timeline = TimelinePart(picture, self._why, lambda content: self.acts.asked(content))
        #: Cancel and resize of the job that is chosen there.
        self.acts = Acts(runtime, self._link, self.timeline.answered, lambda: self.tuning.assumed.seconds())
        #: Choose and apply policies.
        self.tuning = Tuning(
            runtime, self._link, PolicyModel(picture.status["policy"]), self.timeline.predict
        )
        #: Which policy would be best.
        self.trial = TryAll(runtime, self._link, self.tuning.choose, self.tuning.assumed.seconds)
        self.tuning.assumed.field.observe(lambda _: self.trial.assumed_changed(), names="value")
        #: Look at and change settings.
        self.settings = SettingsPart(runtime, self._link, SettingsModel(picture.status["settings"]))
        #: What is chosen, as Python.
        self.code = CodePart(lambda: code(self.tuning.model.spec(), self.settings.model.beyond_defaults()))
        #: What the scheduler said of jobs that wait for long, by id.
        self._noticed: dict[str, str] = {}
        self._unheard = notices.show(runtime.client, self._noticed.__setitem__)
        #: Two jobs to begin with.
        self.examples = Examples(runtime, self._link)
        #: Bounds of the power corridor.
        self.corridor = CorridorPart(runtime, self._link)
        #: What cells keep of it.
        self.record = Record()
        #: What is found out for whoever has clicked a job, and which.
        self._looking: tuple[str, background.Work] | None = None
        #: Whether its twin is being made.
        self._writing = False
        self._views = views.registered()
        self.head = widgets.HTML(layout=_FULL)
        #: What waits for long; apart, so that whoever is at the link above stays there.
        self.notices = widgets.HTML(layout=_FULL)
        #: A box to tick for each view.
        self.ticks = {one.name: _tick(one) for one in self._views}
        #: The views that are tables.
        self.tables = TablesPart(self._views, picture, self._opened)
        #: What the other views show, by name.
        others = [one for one in self._views if one not in self.tables.views]
        self.bodies = {one.name: widgets.HTML(layout=_FULL) for one in others}
        self.end = widgets.Button(
            description="Close panel",
            tooltip="Take the panel off the page; the cluster goes on as it is",
            layout={"width": "auto", "margin": "2px 2px 2px auto"},
        )
        ticks = widgets.HBox([*self.ticks.values(), self.end], layout={**_FULL, "flex_flow": "row wrap"})
        policy = widgets.VBox(
            [
                widgets.HTML(markup.part(element("h3", "Policy"))),
                self.trial.box,
                self.tuning.box,
                self.code.box,
            ],
            layout=_FULL,
        )
        super().__init__(
            [
                self.head,
                self.notices,
                self.examples.box,
                widgets.GridBox([self.timeline.box, policy], layout=_FULL).add_class("dask-hpc-pair"),
                self.trial.says,
                self.tuning.predicted,
                ticks,
                *([] if self.tables.box is None else [self.tables.box]),
                *self.bodies.values(),
                self.corridor.box,
                widgets.HTML(markup.part(element("h3", "Settings"))),
                self.settings.box,
            ],
            layout={**_FULL, "max_width": "80rem"},
        )
        self.add_class("dask-hpc-panel").add_class("dask-hpc-controls").add_class(self.record.name)
        for tick in self.ticks.values():
            tick.observe(lambda _: self._ticked(), names="value")
        self.end.add_class("dask-hpc-close")
        self.end.on_click(lambda _: self.close())
        self.trial.report(picture)
        self._tell(picture)
        self._draw()
        # the simulator is not needed to see a panel, and is there before anybody can press a button
        threading.Thread(target=importlib.import_module, args=("dask_hpc.sim.waiting",), daemon=True).start()
        self._link.watch(
            lambda: questions.picture(runtime, self.timeline.number),
            self._show,
            PERIOD_S,
            self._gone,
            self._heard,
        )

    @property
    def _opened(self) -> list[str]:
        """Names of the views that a person has opened."""
        return [name for name, tick in self.ticks.items() if tick.value]

    def _heard(self, answer: Any) -> None:
        """Have what is new drawn, in the client's loop: also while the kernel is busy."""
        self.timeline.heard(answer)
        self.tables.heard(answer)
        self._tell(answer)

    def _tell(self, answer: Any = None) -> None:
        """Write head, notices and views, of an answer or an error; None: of the last. Runs in any thread."""
        with self._lock:
            if self._link.closed:
                return
            if answer is not None:
                told = isinstance(answer, Picture)
                self._newest = (answer, "") if told else (self._newest[0], self._why_not(answer))
            picture = self._newest[0]
            _set(self.head, _parted(self._head(*self._newest, self._dashboard)))
            _set(self.notices, markup.part(self._notices(picture)) if self._noticed else "")
            for one in self._views:
                if one.name in self.bodies:
                    shown = self.ticks[one.name].value and one.is_in(picture)
                    text = markup.part(element("h3", one.title), one.body(picture)) if shown else ""
                    _set(self.bodies[one.name], text)

    def _why_not(self, error: Any) -> str:
        gone = "This panel has ended: its client is closed. " if self._gone() else ""
        return f"{gone}Nothing new from the cluster: {error}"

    def html(self) -> str:
        """The static twin: everything that the panel shows, and every view, without widgets."""
        parts = [
            markup.folded(one.title, one.body(self.picture)) for one in self._views if one.is_in(self.picture)
        ]
        settings = markup.folded("Settings", self.settings.summary())
        return markup.page(
            # the dashboard may be gone when somebody reads it
            self._head(self.picture, self.trouble, ""),
            markup.soft(f"As it was on {time.strftime(_CLOCK, time.localtime(self._at_s))}."),
            self._notices(self.picture),
            self.timeline.html(),
            *parts,
            element("h3", "Policy"),
            self.tuning.summary(),
            settings,
        )

    def close(self) -> None:
        """End the updates and take every widget of the panel out of the kernel and the page."""
        if self._link.closed:
            return
        self.record.keep(self.html)
        self._link.close()
        self._unheard()
        self._look_no_more()
        self.examples.close()
        self.tuning.close()
        self.trial.close()
        self.code.close()
        for widget in below(self):
            if widget is not self:
                widget.close()
        super().close()

    def _ipython_display_(self) -> None:
        shown = super()._repr_mimebundle_() or {"text/plain": repr(self)}
        self.record.show(self.html(), shown, self._phase(), _known(self.picture))

    def __repr__(self) -> str:
        if self._link.closed:
            return "<Panel closed>"
        return f"<Panel policy={title(self.tuning.model.running)!r} jobs={len(self.picture.jobs)}>"

    # ------------------------------------------------------ in the kernel's loop

    def _why(self, job: str) -> None:
        """Answer a click on a job."""

        def seen(answer: Any) -> None:
            if isinstance(answer, Exception):
                return told(answer)
            view, rows, present = answer
            try:
                assumed_s = self.tuning.assumed.seconds()
            except ParameterError as error:
                return told(error)
            # beside the loop: what would start it is a run for every policy; the latest click is answered
            self._look_no_more()
            about = functools.partial(why.about, view, rows, present, job, assumed_s)
            work = background.Work(lambda step: about(lambda: step(0.0)), lambda share: None, told)
            self._looking = job, work

        def told(outcome: Any) -> None:
            if not self._link.closed:
                if isinstance(outcome, background.Cancelled):
                    if self._looking is not None and self._looking[0] == job:
                        return  # that click was on this job: it is answered
                    outcome = "Not looked for: another click came."
                failed = isinstance(outcome, Exception)
                text = f"Not known: {outcome}" if failed else outcome
                lines = (text, why.forecast(self.picture, job))
                self.timeline.answered(job, "\n".join(filter(None, lines)))

        self._link.ask(lambda: questions.state(self._runtime), seen)

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking[1].cancel()

    def _gone(self) -> bool:
        client = self._runtime.channel.client_or_none
        return client is None or client.status == "closed"

    def _show(self, answer: Any) -> None:
        if isinstance(answer, Picture):
            self.picture, self.trouble, self._at_s = answer, "", time.time()
            self.tuning.report(answer.status["policy"])
            self.tuning.happened(answer)
            self.settings.report(answer.status["settings"])
            self.trial.report(answer)
        else:
            self.trouble = self._why_not(answer)
        if not self._link.live or not isinstance(answer, Picture):
            self._tell(answer)  # else it was told when it was heard; its end may be seen here alone
        self._draw()
        if not self._writing and self.record.due(self._phase(), _known(self.picture)):
            # beside the loop: on a large cluster the twin takes a while
            self._writing = True
            background.Work(lambda _: self.html(), lambda share: None, self._keep)

    def _phase(self) -> tuple[Any, ...]:
        """What cells are written anew for at once: seldom, as all of the twin is sent then."""
        status = self.picture.status
        return status["policy"], status["jobs_running"] + status["jobs_pending"] > 0, bool(self.trouble)

    def _keep(self, twin: Any) -> None:
        self._writing = False
        if isinstance(twin, str) and not self._link.closed:
            self.record.keep(lambda: twin)
        elif not isinstance(twin, str):
            self.record.failed()

    def _ticked(self) -> None:
        self._tell()
        self._draw()

    def _draw(self) -> None:
        if self._link.closed:
            return
        self.timeline.draw()
        self.examples.report(self.picture)
        self.code.refresh()
        self.tables.heard(self.picture)
        self.tables.show(self._opened)
        for one in self._views:
            there = one.is_in(self.picture)
            _set(self.ticks[one.name].layout, None if there else "none", "display")
            if one.name == "power":
                self.corridor.show(there and self.ticks["power"].value)

    def _notices(self, picture: Picture) -> Markup:
        for old in list(self._noticed)[:-_REMEMBERED]:
            self._noticed.pop(old, None)
        # of the reason for which a job waits now
        waits = {one["id"]: one["reason"] for one in picture.jobs if one["state"] == "pending"}
        noticed = [text for id, text in list(self._noticed.items()) if id in waits and waits[id] in text]
        return markup.status(*map(markup.note, noticed[-_NOTICES:])) if noticed else Markup()

    def _head(self, picture: Picture, trouble: str, dashboard: str) -> Markup:
        status = picture.status
        pool = status["pool_nodes"]
        # the table of jobs has a row for it
        plain = any(one.get("is_default") and one["end_s"] is None for one in picture.jobs)
        over = self._gone()
        begin = "When it was last heard of: " if over else ""
        running = f"{counted(status['jobs_running'], 'job')}{' and plain work' * plain} running"
        sentence = (
            f"{begin}{counted(pool)}; {running}, {status['jobs_pending']} waiting; "
            f"{'decided' if over else 'decides'}: "
        )
        sections = status.get("section_failures", {})
        errors = (
            trouble,
            status.get("policy_failure"),
            status.get("policy_dropped"),
            *(f"{part} cannot tell its state: {error}" for part, error in sections.items()),
        )
        return _headed(sentence, title(status["policy"]), dashboard, tuple(filter(None, errors)))


@functools.lru_cache(maxsize=8)
def _headed(sentence: str, policy: str, dashboard: str, errors: tuple[str, ...]) -> Markup:
    more = (" ", markup.link("Dask's dashboard", dashboard), ".") if dashboard else ()
    told = element("p", sentence, markup.strong(policy), ".", *more)
    return Markup().join([told, *map(markup.alert, errors)])


def _dashboard(client: Any) -> str:
    try:
        return str(client.dashboard_link or "")
    except KeyError:
        # a scheduler that has none
        return ""


def _known(picture: Picture) -> tuple[Any, ...]:
    """What is another when more than time has passed."""
    return picture.happened.get("number"), sum(job["unfinished_tasks"] for job in picture.jobs)


def _tick(view: View) -> Any:
    return widgets.Checkbox(
        value=view.name in _OPEN,
        description=view.title,
        tooltip=f"Show or hide: {view.title}",
        indent=False,
        layout={"width": "auto", "margin": "0 1rem 0 0", "display": None},
    )


def _set(widget: Any, value: str | None, trait: str = "value") -> None:
    """Show `value`; what is shown already is neither looked at nor sent again."""
    if getattr(widget, trait) != value:
        setattr(widget, trait, value)
