"""JSON and YAML texts as fields: plain data, bounded, and one error for whatever is no such text.

Rules of the file: lists, mappings, texts, numbers, truth values and null; a key that is given twice, a text
that is no valid Unicode (half a surrogate pair) and too much of anything are errors. What aliases of YAML
repeat is counted before it is made. Comments and blank lines are passed over as fast as they are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import yaml

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats.fields import Field, failure, half_pair, short

#: Most values that one file may hold.
MOST_VALUES = 5_000_000
#: Most values that the aliases of a YAML file may repeat.
MOST_REPEATED = 1_000_000
#: Deepest nesting of lists and mappings in YAML.
DEEPEST = 100
#: Longest YAML text, in bytes.
LARGEST_YAML_BYTES = 2**26

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str, file: str) -> Field:
    """The value that a JSON text holds.

    Raises
    ------
    WorkloadError
        When it is no JSON, with line and column; a text that ends too early is said to be cut off.
    """
    # a bound that costs nothing, before anything is made of the text
    if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
        raise WorkloadError(f"{file}: it holds more than {MOST_VALUES} values")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_duplicates)
    except json.JSONDecodeError as error:
        cut = " (the file may be cut off)" if not text[error.pos :].strip() else ""
        raise WorkloadError(
            f"{file}, line {error.lineno}, column {error.colno}: no JSON: {error.msg}{cut}"
        ) from None
    except RecursionError:
        raise WorkloadError(f"{file}: no JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise WorkloadError(f"{file}: no JSON: {error}") from None
    if _ESCAPED_SURROGATE.search(text):
        _check_unicode(value, file)
    return Field(value, file)


def parse_yaml(text: str, file: str) -> Field:
    """The value that a YAML text holds, with the line of each field.

    Raises
    ------
    WorkloadError
        When it is no YAML, holds anything but plain data, a key twice, or too much.
    """
    (field,) = _parse_yaml(text, file, lambda loader: [loader.get_single_node()])
    return field


def parse_yaml_documents(text: str, file: str) -> list[Field]:
    """The values of all documents that a YAML text holds; those without one are passed over.

    Raises
    ------
    WorkloadError
        As `parse_yaml`.
    """
    return [field for field in _parse_yaml(text, file, _documents) if field.value is not None]


def _documents(loader: _Loader) -> Iterator[yaml.Node | None]:
    while loader.check_node():
        yield loader.get_node()


def _parse_yaml(text: str, file: str, read: Callable[[_Loader], Iterable[yaml.Node | None]]) -> list[Field]:
    loader, fields = None, []
    try:
        loader = _Loader(text)
        for node in read(loader):
            value = None if node is None else _Reading(loader, file).whole(node)
            fields.append(Field(value, file, "", _NodeLines(node)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise WorkloadError(f"{file}{line}: no YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line_number = text.count("\n", 0, error.position) + 1
        raise WorkloadError(
            f"{file}, line {line_number}: no YAML: the character {chr(error.character)!r} is not allowed"
        ) from None
    except RecursionError:
        line = "" if loader is None else f", line {loader.line + 1}"
        raise WorkloadError(f"{file}{line}: no YAML that can be read: it is nested too deeply") from None
    return fields


_BREAKS = "\r\n\x85\u2028\u2029"
# only the outer repetition is possessive: inside another, Python 3.11.2 keeps what a failed one has taken
_BLANK = re.compile(rf"(?: *(?:\#[^\0{_BREAKS}]*)?(?:\r\n|[{_BREAKS}]))*+(?P<last> *(?:\#[^\0{_BREAKS}]*)?)")


class _Loader(yaml.SafeLoader):
    """Reads `1e3` and `5e-1` as numbers, as JSON does, and passes over comments in one step."""

    def scan_to_next_token(self) -> None:
        """As in the parent class, which takes a microsecond for each character of a comment."""
        found = _BLANK.match(self.buffer, self.pointer)
        if found is not None and found.end() > self.pointer:
            begin, last = self.pointer, found.start("last")
            breaks = sum(self.buffer.count(one, begin, last) for one in _BREAKS)
            breaks -= self.buffer.count("\r\n", begin, last)
            self.line += breaks
            self.column = found.end() - last if breaks else self.column + found.end() - begin
            self.index += found.end() - begin
            self.pointer = found.end()
            if breaks and not self.flow_level:
                self.allow_simple_key = True
        super().scan_to_next_token()


class Dumper(yaml.SafeDumper):
    """Writes what is read as the same: texts such as `1e3` in quotes."""


for _either in (_Loader, Dumper):
    _either.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )

_SCALARS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null"))
_KEYS = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:int"})


class _NodeLines:
    """Lines of the fields of a YAML text, looked up in its nodes when a message needs one."""

    def __init__(self, root: yaml.Node | None) -> None:
        self._root = root

    def get(self, path: str) -> int | None:
        """Line of the field at `path`, None when it is not there."""
        node, line = self._root, 0
        while node is not None:
            if not path:
                return line or int(node.start_mark.line) + 1
            node, line, path = self._below(node, path)
        return None

    def _below(self, node: yaml.Node, path: str) -> tuple[yaml.Node | None, int, str]:
        if isinstance(node, yaml.SequenceNode):
            index, closed, rest = path.removeprefix("[").partition("]")
            if closed and index.isdigit() and int(index) < len(node.value):
                below = node.value[int(index)]
                return below, below.start_mark.line + 1, rest.removeprefix(".")
        elif isinstance(node, yaml.MappingNode):
            # the longest key, because a key may hold a dot
            keys = [(key, value) for key, value in node.value if _begins(path, str(key.value))]
            if keys:
                key, value = max(keys, key=lambda pair: len(pair[0].value))
                return value, key.start_mark.line + 1, path[len(key.value) :].removeprefix(".")
        return None, 0, ""


def _begins(path: str, key: str) -> bool:
    return path.startswith(key) and path[len(key) : len(key) + 1] in ("", ".", "[")


class _Reading:
    """One walk over the nodes of a text."""

    def __init__(self, loader: yaml.SafeLoader, file: str) -> None:
        self.loader, self.file = loader, file
        #: Where the walk is.
        self.parts: list[str] = []
        #: Values in each node that was counted, those of an alias each time; 0 while it is being counted.
        self.counts: dict[int, int] = {}
        self.too_many: yaml.Node | None = None

    def whole(self, root: yaml.Node) -> Any:
        """The value of the node."""
        values = self.count(root)
        if len(self.counts) > MOST_VALUES:
            raise WorkloadError(f"{self.file}: it holds more than {MOST_VALUES} values")
        if values - len(self.counts) > MOST_REPEATED:
            self.fail(self.too_many or root, f"aliases repeat more than {MOST_REPEATED} values from here on")
        return self.plain(root)

    def count(self, node: yaml.Node) -> int:
        known = self.counts.get(id(node))
        if known == 0:
            self.fail(node, "an anchor holds an alias of itself")
        if known is None:
            self.counts[id(node)] = 0
            known = 1
            if isinstance(node, yaml.SequenceNode):
                known += sum(map(self.count, node.value))
            elif isinstance(node, yaml.MappingNode):
                known += sum(self.count(value) for _, value in node.value)
            self.counts[id(node)] = known
            if known > MOST_REPEATED and self.too_many is None:
                self.too_many = node
        return known

    def plain(self, node: yaml.Node) -> Any:
        if len(self.parts) > DEEPEST:
            self.fail(node, f"nested more than {DEEPEST} deep")
        if isinstance(node, yaml.SequenceNode):
            return [self._below(f"[{index}]", part) for index, part in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node)
        if node.tag not in _SCALARS:
            kind = node.tag.rpartition(":")[2]
            self.fail(node, f"{short(node.value)} is a {kind}, which is not read")
        try:
            value = self.loader.construct_object(node)
        except (ValueError, LookupError):
            # digits that are none (0b_), too many of them, nothing at all (!!int '')
            self.fail(node, f"{short(node.value)} is no {node.tag.rpartition(':')[2]}")
        return self._unicode(node, value) if isinstance(value, str) else value

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            # a number is a key by its text, as in JSON
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in _KEYS:
                self.fail(key_node, f"the key {short(key_node.value)} is no text")
            key = self._unicode(key_node, key_node.value)
            part = f".{key}" if self.parts else key
            if key in result:
                self.parts.append(part)
                self.fail(key_node, "the key is given twice")
            result[key] = self._below(part, value_node)
        return result

    def _below(self, part: str, node: yaml.Node) -> Any:
        self.parts.append(part)
        value = self.plain(node)
        self.parts.pop()
        return value

    def _unicode(self, node: yaml.Node, text: str) -> str:
        wrong = half_pair(text)
        if wrong is None:
            return text
        try:
            # pairs are what JSON writes for characters beyond 16 bits
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.fail(node, wrong)

    def fail(self, node: yaml.Node, message: str) -> NoReturn:
        raise failure(self.file, node.start_mark.line + 1, "".join(self.parts), message)


def _check_unicode(value: Any, file: str) -> None:
    """Refuse the first text in `value` that is no valid Unicode."""
    waiting = [Field(value, file)]
    while waiting:
        place = waiting.pop()
        if isinstance(place.value, str):
            if wrong := half_pair(place.value):
                place.fail(wrong)
        elif isinstance(place.value, list):
            waiting += place.sequence()
        elif isinstance(place.value, dict):
            for key in place.value:
                if wrong := half_pair(key):
                    place.fail(f"the key {wrong}")
            waiting += (below for _, below in place.items())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {short(key)} is given twice in one object")
            seen.add(key)
    return result
