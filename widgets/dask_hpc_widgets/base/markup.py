"""Pieces of HTML that the panel and its static twins share.

Rules of the file: data in, markup out. Every text passes through `escape`. Colours are JupyterLab's variables
and so follow its theme; elsewhere the fallbacks inherit from the page, which fits a light one and a dark one.
Colour never stands alone: what it says, a word or a shape says as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dask_hpc.report.svg import escape, format_seconds

__all__ = [
    "Column",
    "alert",
    "badge",
    "bar",
    "escape",
    "page",
    "part",
    "roughly",
    "seconds",
    "soft",
    "style",
    "table",
]

#: Styles of everything inside of an element of class ``dask-hpc``, and of widgets inside of a box of class
#: ``dask-hpc-controls``: what cannot be used is framed in dashes and stays readable, and labels stand above
#: their fields where it is narrow.
CSS = """
.dask-hpc { color: var(--jp-ui-font-color1, inherit); font-size: var(--jp-ui-font-size1, 13px);
  line-height: 1.45; --line: var(--jp-border-color2, rgba(128, 128, 128, 0.5)); container-type: inline-size; }
.dask-hpc h3 { font-size: 1.1em; margin: 0.8em 0 0.3em; }
.dask-hpc p { margin: 0.2em 0; overflow-wrap: anywhere; }
.dask-hpc ul { margin: 0.3em 0; padding-left: 1.6em; }
.dask-hpc li { margin: 0; }
.dask-hpc table + table { margin-top: 0.8em; }
.dask-hpc .soft { color: var(--jp-ui-font-color1, inherit); font-style: italic; }
.dask-hpc .alert { border-left: 4px solid var(--jp-error-color1, #b3261e); padding-left: 0.6em;
  margin: 0.3em 0; overflow-wrap: anywhere; }
.dask-hpc table { border-collapse: collapse; width: 100%; margin: 0; font-size: inherit; table-layout: auto; }
.dask-hpc th, .dask-hpc td { text-align: left; vertical-align: top; padding: 0.25em 0.8em 0.25em 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; white-space: normal; max-width: none;
  background: transparent; color: inherit; }
.dask-hpc th { overflow-wrap: normal; word-break: normal; hyphens: auto; }
.dask-hpc th.number, .dask-hpc td.number { text-align: right; font-variant-numeric: tabular-nums; }
.dask-hpc .badge { border: 1px solid var(--line); border-radius: 3px; padding: 0 0.4em; white-space: nowrap; }
.dask-hpc .bar { display: inline-block; width: 5em; height: 0.7em; border: 1px solid var(--line);
  vertical-align: -1px; margin-right: 0.4em; }
.dask-hpc .bar span { display: block; height: 100%; background: var(--jp-brand-color1, #2f6db3); }
.dask-hpc td:has(> svg.steps) { width: 80%; }
.dask-hpc svg.steps { width: 100%; min-width: 6em; height: 24px; display: block;
  border-bottom: 1px solid var(--line); }
.dask-hpc .nodes { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 11em), 1fr));
  gap: 0.4em; list-style: none; margin: 0.3em 0; padding: 0; }
.dask-hpc .nodes li { border: 1px solid var(--line); border-left-width: 6px; border-radius: 3px;
  padding: 0.2em 0.5em; margin: 0; overflow-wrap: anywhere; }
.dask-hpc .nodes li.draining { border-style: dashed; }
.dask-hpc .nodes li.lost { border-style: dotted; }
@container (max-width: 600px) {
  .dask-hpc thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .dask-hpc table, .dask-hpc tbody, .dask-hpc tr, .dask-hpc td { display: block; }
  .dask-hpc tr { border-bottom: 1px solid var(--line); padding: 0.3em 0; }
  .dask-hpc td, .dask-hpc td.number { border: 0; padding: 0; text-align: left; }
  .dask-hpc td::before { content: attr(data-label) ": "; font-weight: 600; }
  .dask-hpc td:empty { display: none; }
  .dask-hpc td:has(> svg.steps) { width: auto; }
}
.dask-hpc-controls { color: var(--jp-ui-font-color1, inherit); container-type: inline-size; }
.dask-hpc-controls .mod-warning { color: #000; }
.dask-hpc-controls .jupyter-button:disabled { opacity: 1; color: inherit; background: transparent;
  outline: 1px dashed var(--jp-border-color1, rgba(128, 128, 128, 0.5)); outline-offset: -1px;
  cursor: not-allowed; }
.dask-hpc-controls .widget-checkbox { padding-left: 3px; }
.dask-hpc-controls .widget-dropdown > select { appearance: auto; background-image: none;
  min-height: var(--jp-widgets-inline-height, 28px); }
.dask-hpc-controls .widget-hbox > .widget-html { flex: 1 1 20rem; }
.dask-hpc-controls > .widget-button, .dask-hpc-controls .widget-vbox > .widget-button { align-self: start; }
@container (max-width: 420px) {
  .dask-hpc-controls .widget-inline-hbox { flex-wrap: wrap; height: auto; }
  .dask-hpc-controls .widget-inline-hbox > .widget-label { width: 100% !important; text-align: left; }
}
"""

#: A column: heading, and whether it holds numbers.
Column = tuple[str, bool]


def style() -> str:
    """The styles of every `part` in the same document."""
    return f"<style>{CSS}</style>"


def part(*pieces: str) -> str:
    """Markup for a document that has the `style` once."""
    return f'<div class="dask-hpc">{"".join(pieces)}</div>'


def page(*pieces: str) -> str:
    """Markup with the styles it needs, for a cell of its own."""
    return part(style(), *pieces)


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A table whose cells are markup already; `caption` says what it is, for those who hear it."""
    kind = {True: ' class="number"', False: ""}
    head = "".join(f'<th scope="col"{kind[number]}>{escape(label)}</th>' for label, number in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{kind[number]} data-label="{escape(label)}">{cell}</td>'
            for (label, number), cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<table aria-label="{escape(caption)}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def alert(text: str) -> str:
    """A text that must not be missed; it is read out when it appears."""
    return f'<p class="alert" role="alert"><strong>Error:</strong> {escape(text)}</p>'


def soft(text: str) -> str:
    """A text that explains."""
    return f'<p class="soft">{escape(text)}</p>'


def badge(text: str) -> str:
    """One word in a frame: a state."""
    return f'<span class="badge">{escape(text)}</span>'


def bar(share: float) -> str:
    """A bar filled to `share` (0 to 1), for those who see it: the number stands beside it."""
    width = 100 * min(1.0, max(0.0, share))
    return f'<span class="bar" aria-hidden="true"><span style="width:{width:.0f}%"></span></span>'


def seconds(value: float | None, none: str = "n/a") -> str:
    """A duration as text, `none` when there is none."""
    return none if value is None else format_seconds(value)


def roughly(value: float | None, none: str = "n/a") -> str:
    """A duration that goes on, in steps so coarse that a page which shows it seldom changes.

    Whole seconds below ten, five below a minute, then two digits of the largest fitting unit.
    """
    if value is None:
        return none
    if value < 60:
        return f"{value // (1 if value < 10 else 5) * (1 if value < 10 else 5):.0f} s"
    unit_s, unit = next(pair for pair in ((86_400, "d"), (3_600, "h"), (60, "min")) if value >= pair[0])
    count = value / unit_s
    return f"{int(count * 10) / 10:g} {unit}" if count < 10 else f"{int(count)} {unit}"
