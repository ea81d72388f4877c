"""HTML and SVG from templates, in which all text is escaped.

Rules of the file: values in, `Markup` out. Escaping is Jinja2's: what is no `Markup` is text, wherever it
comes from. Templates are in the folder ``templates`` of the package that uses them.
"""

from __future__ import annotations

import functools
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dask_hpc.report.looks import format_seconds, printable


@functools.cache
def environment(package: str) -> Environment:
    """The templates of an import package."""
    made = Environment(
        loader=PackageLoader(package),
        autoescape=True,
        # a value that was forgotten is an error, not nothing
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # an installed package does not change while it runs
        auto_reload=False,
    )
    made.filters |= {"seconds": seconds, "number": number}
    made.globals["zip"] = functools.partial(zip, strict=True)
    return made


def render(package: str, template: str, **values: Any) -> Markup:
    """What a template of `package` gives for `values`, without characters that are not for reading."""
    return Markup(printable(environment(package).get_template(template).render(values)))


def render_macro(package: str, template: str, name: str, *arguments: Any) -> Markup:
    """What one macro of a template gives: a piece, to be put together with others and made `printable`."""
    made: Markup = _macros(package, template)[name](*arguments)
    return made


@functools.cache
def _macros(package: str, template: str) -> dict[str, Any]:
    return vars(environment(package).get_template(template).module)


def seconds(value: float | None, none: str = "n/a") -> str:
    """A duration as text, `none` when there is none."""
    return none if value is None else format_seconds(value)


def number(value: float) -> str:
    """A position in a chart: three digits behind the point, as few as are needed."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
