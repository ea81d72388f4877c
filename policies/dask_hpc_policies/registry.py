"""Policies by name: builtin, third-party (entry points) and the YAML library.

Rules of the file: the only module of the package that reads files and entry points. What comes from a
file is data: it names registered policies and their parameters, and never leads to an import. A spec is
a name, or a mapping

.. code-block:: yaml

    policy: pwma-fpsma          # or chain, arbiter
    policies: [...]             # members of a chain or an arbiter: specs
    params: {min_remaining_s: 60 s}
    compose: [{cooldown: {cooldown_s: 30 s}}, mtct]   # guards, innermost first
    lock: system                # setting of the runtime this set was made for; does not change the policy
    description: ...            # free text, as is provenance
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from dask_hpc_policies.builtin import BUILTIN, builtin
from dask_hpc_policies.combine.guards import GUARDS, Guarded, guarded
from dask_hpc_policies.combine.merge import Combined, _combined
from dask_hpc_policies.params import ParameterError, Parameters, shown, suggestion
from dask_hpc_policies.protocol import InvalidPolicy, Policy, UnknownPolicy

#: Entry-point group: name -> callable that takes parameters by keyword and returns a policy.
GROUP = "dask_hpc.policies"

_KEYS = ("policy", "policies", "params", "compose", "lock", "description", "provenance", "custom")
#: Letters that a policy file may have, values that it may hold (those of an alias each time), and how deep.
_LONGEST, _MOST_VALUES, _DEEPEST = 1_000_000, 10_000, 50


def names() -> tuple[str, ...]:
    """Names of all registered policies: builtin first, then third-party ones."""
    return (*BUILTIN, *sorted(set(_factories()) - set(BUILTIN)))


def library_names() -> tuple[str, ...]:
    """Names of the ready-made settings in the YAML library."""
    return tuple(sorted(_library()))


def create(spec: str | Path | Mapping[str, Any] | Policy, /, **params: Any) -> Policy:
    """The policy that `spec` describes.

    Parameters
    ----------
    spec
        A registered or library name, a path of a YAML file (text that ends in ``.yaml`` or ``.yml``, or
        a `Path`), a mapping, or a policy object (checked and returned, with `params` applied).
    params
        Parameter values; they win over those in `spec`.

    Raises
    ------
    UnknownPolicy
        For a name that does not exist, with close matches.
    InvalidPolicy
        For a malformed file or mapping, or an object that is no policy.
    ParameterError
        For an unknown parameter or a value it cannot take.
    """
    if isinstance(spec, Path) or (isinstance(spec, str) and spec.endswith((".yaml", ".yml"))):
        return _from_mapping(_read(Path(spec)), params)
    if isinstance(spec, str):
        return _from_name(spec, params)
    if isinstance(spec, Mapping):
        return _from_mapping(spec, params)
    checked = _checked(spec)
    return updated(checked, **params) if params else checked


def describe(name: str) -> dict[str, Any]:
    """Name, summary and declared parameters of a policy, as plain JSON data.

    For a library entry also its spec, its provenance and the lock it was made for (None: any).

    Raises
    ------
    UnknownPolicy
        For a name that does not exist.
    """
    policy = create(name)
    entry = _library().get(name, {}) if name not in names() else {}
    summary = entry.get("description") or getattr(policy, "summary", "") or inspect.getdoc(policy) or ""
    description: dict[str, Any] = {
        "name": name,
        "summary": " ".join(str(summary).split()),
        "parameters": Parameters(getattr(policy, "parameters", ())).json_spec(),
    }
    if entry:
        description["spec"] = spec_of(policy)
        description["lock"] = entry.get("lock")
        description["provenance"] = " ".join(str(entry.get("provenance", "")).split())
    return description


def describe_all() -> list[dict[str, Any]]:
    """What `describe` says of every registered policy and every entry of the library."""
    return [describe(name) for name in (*names(), *library_names())]


def spec_of(policy: Policy) -> dict[str, Any]:
    """Plain JSON data from which `create` makes an equivalent policy.

    An object that is not registered gives ``{"policy": "module:class", "params": {...}, "custom": True}``,
    which tells what it is but cannot be created from.
    """
    if isinstance(policy, Guarded):
        below = spec_of(policy.base)
        guard = {policy.guard.name: dict(policy.own_params)}
        return {**below, "compose": [*below.get("compose", []), guard]}
    if isinstance(policy, Combined):
        return {"policy": policy.name, "policies": [spec_of(member) for member in policy.policies]}
    params = dict(getattr(policy, "params", {}))
    if _is_registered(policy):
        return {"policy": policy.name, "params": params}
    return {
        "policy": f"{type(policy).__module__}:{type(policy).__qualname__}",
        "params": params,
        "custom": True,
    }


def updated(policy: Policy, /, **params: Any) -> Policy:
    """A copy of `policy` with some parameters changed; in a composition, wherever they are declared.

    Raises
    ------
    ParameterError
        For a parameter that nothing in `policy` declares, or a value it cannot take.
    """
    declared = Parameters(getattr(policy, "parameters", ()))
    clean = {name: declared.validate(name, value) for name, value in params.items()}
    if isinstance(policy, Guarded):
        own = {name: value for name, value in clean.items() if name in policy.own_params}
        rest = {name: value for name, value in clean.items() if name not in own}
        base = updated(policy.base, **rest) if rest else policy.base
        return guarded(policy.guard.name, base, **{**policy.own_params, **own})
    if isinstance(policy, Combined):
        members = [
            updated(
                member,
                **{p.name: clean[p.name] for p in getattr(member, "parameters", ()) if p.name in clean},
            )
            for member in policy.policies
        ]
        return _combined(policy.name, members)
    if not clean:
        return policy
    merged = {**getattr(policy, "params", {}), **clean}
    return _from_name(policy.name, merged) if _is_registered(policy) else _checked(type(policy)(**merged))


def _from_name(name: str, params: Mapping[str, Any]) -> Policy:
    if name in BUILTIN:
        return builtin(name, **params)
    factories = _factories()
    if name in factories:
        try:
            inspect.signature(factories[name]).bind(**params)
        except TypeError as error:
            raise ParameterError(f"policy {name!r}: {error}") from None
        return _checked(factories[name](**params))
    if name in _library():
        return _from_mapping(_library()[name], params)
    known = (*names(), *library_names())
    raise UnknownPolicy(f"unknown policy {name!r}; policies are {', '.join(known)}{suggestion(name, known)}")


def _from_mapping(spec: Mapping[str, Any], params: Mapping[str, Any]) -> Policy:
    for key in spec:
        if key not in _KEYS:
            raise InvalidPolicy(
                f"unknown key {key!r} in a policy; keys are {', '.join(_KEYS)}{suggestion(key, _KEYS)}"
            )
    name = spec.get("policy")
    if not isinstance(name, str):
        raise InvalidPolicy(f"a policy needs 'policy': a name out of {', '.join(names())}; got {name!r}")
    if spec.get("custom"):
        raise InvalidPolicy(
            f"policy {name!r} is not registered and cannot be made from data; pass the object itself"
        )
    own = _mapping(spec.get("params") or {}, "params")
    if name in ("chain", "arbiter"):
        policy: Policy = _combined(
            name, [create(member) for member in _list(spec.get("policies"), "policies")]
        )
        policy = updated(policy, **own) if own else policy
    else:
        if "policies" in spec:
            raise InvalidPolicy(f"policy {name!r} has no members; 'policies' is for chain and arbiter alone")
        policy = _from_name(name, own)
    for item in _list(spec.get("compose") or [], "compose"):
        policy = _guard(policy, item)
    return updated(policy, **params) if params else policy


def _guard(policy: Policy, item: Any) -> Policy:
    entry = {item: None} if isinstance(item, str) else _mapping(item, "compose")
    if len(entry) != 1:
        raise InvalidPolicy(
            f"{item!r} in 'compose' must be one guard: its name, or a mapping of its name to parameters"
        )
    ((name, params),) = entry.items()
    if name not in GUARDS:
        raise UnknownPolicy(
            f"unknown guard {name!r} in 'compose'; guards are {', '.join(GUARDS)}{suggestion(name, GUARDS)}"
        )
    return guarded(name, policy, **_mapping(params or {}, f"compose: {name}"))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidPolicy(f"{where!r} must map names to values, got {shown(value)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise InvalidPolicy(f"{where!r} must be a list, got {shown(value)}")
    return list(value)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        # a device or a pipe may have no end, or never begin
        if path.exists() and not path.is_file():
            raise InvalidPolicy(f"cannot read policy file {str(path)!r}: it is not a regular file")
        with path.open(encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        # what the system says of a file names it once more
        why = getattr(error, "strerror", None) or error
        raise InvalidPolicy(f"cannot read policy file {str(path)!r}: {why}") from error
    if len(text) > _LONGEST:
        raise InvalidPolicy(f"policy file {str(path)!r} is too long; allowed: up to {_LONGEST} letters")
    return _parsed(text, str(path))


class UniqueKeys:
    """Base before a loader of PyYAML: a key that is given twice is refused; the last would hold unsaid."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """The mapping that a node is; raises `yaml.MarkedYAMLError` for a key that is there already."""
        seen = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else key
            if name in seen:
                raise yaml.MarkedYAMLError(None, None, f"{name!r} is given twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)  # type: ignore[misc]


class _Loader(UniqueKeys, yaml.SafeLoader):
    """Reads policy files."""


def _parsed(text: str, where: str) -> Mapping[str, Any]:
    try:
        data = _Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # the last three: a text of a kind that it is not, such as a 13th month
        raise InvalidPolicy(f"policy file {where!r} is not YAML: {error}") from error
    except RecursionError:
        raise InvalidPolicy(f"policy file {where!r} is nested too deeply to be read") from None
    if not isinstance(data, Mapping):
        raise InvalidPolicy(
            f"policy file {where!r} must hold a mapping with 'policy', got {type(data).__name__}"
        )
    _check_bounded(data, where)
    return data


def _check_bounded(data: Any, where: str) -> None:
    """Refuse what aliases have made of a short text: more than anybody reads, or what has no end."""
    waiting, count = [(data, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > _MOST_VALUES or depth > _DEEPEST:
            raise InvalidPolicy(
                f"policy file {where!r} holds more than {_MOST_VALUES} values, or is nested more than "
                f"{_DEEPEST} deep; what aliases repeat counts each time"
            )
        below: Iterable[Any] = ()
        if isinstance(value, (Mapping, list)):
            below = value.values() if isinstance(value, Mapping) else value
        waiting += [(one, depth + 1) for one in below]


def _checked(policy: Any) -> Policy:
    name = getattr(policy, "name", None)
    if isinstance(policy, type):
        raise InvalidPolicy(f"{policy.__qualname__} is a class; pass an instance of it")
    if not isinstance(name, str) or not name:
        raise InvalidPolicy(f"{policy!r} is no policy: it needs a 'name' that is a text, got {name!r}")
    for method, arguments in (("initial_state", 0), ("decide", 2)):
        function = getattr(policy, method, None)
        if not callable(function):
            raise InvalidPolicy(f"policy {name!r} needs a method {method!r}")
        try:
            inspect.signature(function).bind(*range(arguments))
        except TypeError:
            raise InvalidPolicy(
                f"policy {name!r}: {method!r} must take {arguments} arguments"
                + (" (view, state)" if arguments else "")
            ) from None
    if inspect.iscoroutinefunction(policy.decide):
        raise InvalidPolicy(f"policy {name!r}: 'decide' must be an ordinary function, not a coroutine")
    checked: Policy = policy
    return checked


def _is_registered(policy: Policy) -> bool:
    if policy.name in BUILTIN:
        return type(policy) is type(builtin(policy.name))
    factory = _factories().get(policy.name)
    return factory is not None and type(factory()) is type(policy)


@cache
def _factories() -> Mapping[str, Callable[..., Any]]:
    return _load(entry_points(group=GROUP))


def _load(points: Iterable[EntryPoint]) -> dict[str, Callable[..., Any]]:
    """Third-party factories; one that does not load is skipped with a warning."""
    found: dict[str, Callable[..., Any]] = {}
    for point in points:
        if point.name in BUILTIN:
            continue
        try:
            factory = point.load()
            _checked(factory())
        except Exception as error:  # Whatever a third party raises must not stop the program.
            warnings.warn(
                f"policy {point.name!r} of entry point {point.value!r} is skipped: {error!r}", stacklevel=2
            )
        else:
            found[point.name] = factory
    return found


@cache
def _library() -> Mapping[str, Mapping[str, Any]]:
    folder = files("dask_hpc_policies") / "library"
    return {
        entry.name.removesuffix(".yaml"): _parsed(entry.read_text(encoding="utf-8"), entry.name)
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    }
