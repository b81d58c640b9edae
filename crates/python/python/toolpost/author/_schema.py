"""JSON Schema and decoders from type hints."""

from __future__ import annotations

import sys

from ._errors import SpecError, ToolError
from ._values import _CONSTRAINTS
from ._checks import (
    _ANY,
    _CHECKS,
    _construct,
    _DICTS,
    _did_you_mean,
    _expected,
    _Field,
    _form,
    _is_union,
    _json,
    _Kind,
    _LISTS,
    _MAX_QUOTE,
    _PLAIN,
    _Problem,
    _qualified,
    _quote,
    _SETS,
    _text,
    _TEXTS,
    _type_name,
    _types,
    _wrong,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

class _Compiler:
    """Compiles the annotations of one definition. Classes with fields become ``$defs``."""

    def __init__(self, where: str, scopes: Sequence[Mapping[str, Any]], is_output: bool = False) -> None:
        self.where = where
        self.scopes = list(scopes)
        self.is_output = is_output
        self.definitions: dict[str, Any] = {}
        self.classes: dict[Any, _Kind] = {}

    def document(self, kind: _Kind) -> dict[str, Any]:
        """The schema of a kind as it stands alone, with its ``$defs``."""
        schema, definitions = dict(kind.schema), dict(self.definitions)
        name = str(schema.get("$ref", "")).rsplit("/", 1)[-1]
        if name:
            schema = {"title": name, **definitions[name]}
            if f'"#/$defs/{name}"' not in _json(definitions):
                del definitions[name]
        if definitions:
            schema["$defs"] = definitions
        return schema

    def fail(self, hint: Any, reason: str, fix: str) -> SpecError:
        shown = hint if isinstance(hint, str) else getattr(hint, "__qualname__", None) or repr(hint)
        return SpecError(f"{self.where} has the annotation `{shown}`, {reason}; {fix}")

    def resolve(self, text: str) -> Any:
        import builtins
        from collections import ChainMap

        try:
            return eval(text, {}, ChainMap(*map(dict, self.scopes), dict(vars(builtins))))
        except Exception as error:
            reason = f"which cannot be resolved: {type(error).__name__}: {error}"
            raise self.fail(text, reason, "import its names at module level, outside `if TYPE_CHECKING`") from None

    def compile(self, hint: Any) -> _Kind:
        """The kind of an annotation."""
        if isinstance(hint, str):
            return self.compile(self.resolve(hint))
        if type(hint).__name__ == "ForwardRef":
            return self.compile(self.resolve(hint.__forward_arg__))
        if hasattr(hint, "__metadata__"):
            return self.annotated(hint)
        try:
            known = self.classes.get(hint) or _PLAIN.get(hint)
        except TypeError:
            raise self.fail(hint, "which is not a type", "annotate it with a type") from None
        if known is not None:
            return known
        if hasattr(hint, "__supertype__"):
            return self.compile(hint.__supertype__)
        if _form(hint) == "Any":
            return _ANY
        if type(hint).__name__ == "TypeAliasType":
            return self.named(hint, lambda: self.compile(hint.__value__))
        if type(hint).__name__ == "TypeVar":
            return self.union(hint.__constraints__ or (hint.__bound__ or object,))
        origin, args = getattr(hint, "__origin__", None), getattr(hint, "__args__", None) or ()
        if _is_union(hint):
            return self.union(args)
        if origin is not None:
            return self.generic(hint, origin, args)
        if isinstance(hint, type):
            return self.class_(hint)
        raise self.fail(hint, "which has no JSON form", "use a dataclass, a TypedDict or a JSON type")

    def annotated(self, hint: Any) -> _Kind:
        from ._encoding import encode

        if any(hasattr(item, "__get_pydantic_core_schema__") for item in hint.__metadata__):
            return self.pydantic(hint)
        inner = self.compile(hint.__origin__)
        kinds = _types(inner.schema, {"$defs": self.definitions})
        keywords: dict[str, Any] = {}
        items = list(hint.__metadata__)
        while items:
            item = items.pop(0)
            if isinstance(item, str):
                keywords.setdefault("description", item)
                continue
            items.extend(getattr(item, "metadata", None) or ())  # pydantic's `Field`
            if isinstance(getattr(item, "description", None), str):
                keywords["description"] = item.description
            if getattr(item, "examples", None):
                keywords["examples"] = [encode(example) for example in item.examples]
            for name, keyword in _CONSTRAINTS.items():
                limit = getattr(item, name, None)
                if limit is None or callable(limit) or (name == "min_length" and limit == 0):
                    continue
                if keyword.endswith("Length") and "array" in kinds:
                    keyword = keyword.replace("Length", "Items")
                elif keyword.endswith("Length") and "object" in kinds:
                    keyword = keyword.replace("Length", "Properties")
                keywords[keyword] = encode(getattr(limit, "pattern", limit))
        checks = [(*_CHECKS[keyword], limit) for keyword, limit in keywords.items() if keyword in _CHECKS]
        schema = {**inner.schema, **keywords}
        if not checks:
            return _Kind(schema, inner.load, inner.is_plain)

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            before = len(problems)
            result = inner.load(value, at, problems)
            if len(problems) == before:
                for applies, holds, expected, limit in checks:
                    if applies(value) and not holds(value, limit):
                        problems.append(_Problem(at, expected.format(limit), _quote(value)))
            return result

        return _Kind(schema, load, inner.is_plain)

    def union(self, options: Iterable[Any]) -> _Kind:
        kinds = [self.compile(option) for option in options]
        if len(kinds) == 1:
            return kinds[0]
        others = [kind for kind in kinds if kind.schema != {"type": "null"}]
        if len(others) == 1:
            schema = _nullable(others[0].schema)
        elif any(not kind.schema for kind in kinds):
            schema = {}
        else:
            schema = {"anyOf": [kind.schema for kind in kinds]}
        root = {"$defs": self.definitions}

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            nearest: list[_Problem] = []
            for kind in kinds:
                found: list[_Problem] = []
                result = kind.load(value, at, found)
                if not found:
                    return result
                # An option that fails inside, or by a constraint, is nearer than one of another type.
                if _type_name(value) in _types(kind.schema, root) and not nearest:
                    nearest = found
            if nearest:
                problems.extend(nearest)
            else:
                _wrong(value, at, " or ".join(_expected(kind.schema, root) for kind in kinds), problems)

        return _Kind(schema, load, all(kind.is_plain for kind in kinds))

    def generic(self, hint: Any, origin: Any, args: Sequence[Any]) -> _Kind:
        from ._encoding import encode

        form = _form(origin)
        args = tuple(object if type(arg).__name__ == "TypeVar" and form != "Literal" else arg for arg in args)
        if form == "Literal":
            return self.choice([(encode(value), value) for value in args], all(_is_json(value) for value in args))
        if form in ("Final", "Required", "NotRequired", "ReadOnly", "ClassVar"):
            return self.compile(args[0])
        if form == "tuple" and (not args or args[-1] is not Ellipsis):
            return self.tuple_(args) if args else self.items(object, tuple)
        if form in _LISTS or form in _SETS or form == "tuple":
            build = {"tuple": tuple, "frozenset": frozenset}.get(form, set if form in _SETS else list)
            return self.items(args[0] if args else object, build)
        if form in _DICTS:
            return self.mapping(*(args or (str, object)))
        parameters = getattr(origin, "__parameters__", None)
        if isinstance(origin, type) and parameters:
            return self.class_(origin, dict(zip(parameters, args)))
        raise self.fail(hint, "which has no JSON form", "use list, set, tuple, dict, a dataclass or a JSON type")

    def items(self, hint: Any, build: Callable[[Any], Any]) -> _Kind:
        item = self.compile(hint)
        schema: dict[str, Any] = {"type": "array"}
        if item.schema:
            schema["items"] = item.schema
        if build in (set, frozenset):
            schema["uniqueItems"] = True

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if not isinstance(value, list):
                return _wrong(value, at, "array", problems)
            before = len(problems)
            result: list[Any] = [item.load(one, f"{at}/{index}", problems) for index, one in enumerate(value)]
            if len(problems) > before:
                return None
            try:
                built = build(result)
            except TypeError as error:
                raise self.fail(hint, f"whose values are not hashable ({error})", "use a list") from None
            if len(built) < len(result):
                problems.append(_Problem(at, "unique items", _quote(value)))
            return built

        return _Kind(schema, load, build is list and item.is_plain)

    def tuple_(self, args: Sequence[Any]) -> _Kind:
        kinds = [self.compile(arg) for arg in args if arg != ()]
        schema = {
            "type": "array",
            "prefixItems": [kind.schema for kind in kinds],
            "minItems": len(kinds),
            "maxItems": len(kinds),
        }

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if not isinstance(value, list):
                return _wrong(value, at, "array", problems)
            if len(value) != len(kinds):
                problems.append(_Problem(at, f"{len(kinds)} items", _quote(value)))
                return None
            return tuple(kind.load(value[index], f"{at}/{index}", problems) for index, kind in enumerate(kinds))

        return _Kind(schema, load)

    def mapping(self, key_hint: Any, value_hint: Any) -> _Kind:
        key, item = self.compile(key_hint), self.compile(value_hint)
        schema: dict[str, Any] = {"type": "object"}
        if item.schema:
            schema["additionalProperties"] = item.schema
        read = key.load
        if key.schema == {"type": "integer"}:
            schema["propertyNames"] = {"pattern": r"^-?\d+$"}
            read = _text(int, {"type": "string"}, "an integer as key", _construct).load
        elif key.schema and key.schema.get("type") != "string":
            raise self.fail(key_hint, "which cannot be a key in JSON", "use str, int or an enum of strings as key")
        elif len(key.schema) > 1:
            schema["propertyNames"] = key.schema

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if not isinstance(value, dict):
                return _wrong(value, at, "object", problems)
            return {
                read(name, f"{at}/{_escape(name)}", problems): item.load(one, f"{at}/{_escape(name)}", problems)
                for name, one in value.items()
            }

        return _Kind(schema, load, key.is_plain and item.is_plain and "propertyNames" not in schema)

    def choice(self, pairs: Sequence[tuple[Any, Any]], is_plain: bool) -> _Kind:
        """One of several JSON values, each with its Python value."""
        values = [value for value, _ in pairs]
        names = sorted({_type_name(value) for value in values})
        schema = {"type": names[0] if len(names) == 1 else names, "enum": values}
        expected = _expected(schema, {})
        found_by = {(type(value), value): result for value, result in pairs}

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if isinstance(value, (list, dict)) or (type(value), value) not in found_by:
                hint = _did_you_mean(value, map(str, values)) if isinstance(value, str) else None
                problems.append(_Problem(at, expected, _quote(value), suggestion=hint))
                return None
            return found_by[type(value), value]

        return _Kind(schema, load, is_plain)

    def class_(self, cls: Any, arguments: Mapping[Any, Any] | None = None) -> _Kind:
        from ._docstrings import _read_docstring
        from ._encoding import _enum_value

        name = _qualified(cls)
        if name in _TEXTS:
            schema, expected, parse = _TEXTS[name]
            return _text(cls, schema, expected, parse)
        if name == "toolpost.Outcome" and self.is_output:
            return _PLAIN[dict]
        if hasattr(cls, "__get_pydantic_core_schema__"):
            return self.pydantic(cls)
        if any(_qualified(base) == "enum.Enum" for base in cls.__mro__):
            return self.choice([(_enum_value(member), member) for member in cls], False)
        if cls in (set, frozenset, tuple):
            return self.items(object, cls)
        fields = _fields_of(cls, self.is_output)
        if fields is None:
            fix = "make it a dataclass, a TypedDict, a NamedTuple or a pydantic model"
            raise self.fail(cls, "which has no JSON form", fix)
        key = (cls, tuple(arguments.values())) if arguments else cls
        if key in self.classes:
            return self.classes[key]

        def build() -> _Kind:
            inner = self.scopes
            modules = [vars(sys.modules[base.__module__]) for base in cls.__mro__ if base.__module__ in sys.modules]
            self.scopes = [{cls.__name__: cls}, *modules, *inner]
            where, self.where = self.where, f"a field of `{cls.__qualname__}` in {self.where}"
            try:
                text, descriptions = _read_docstring(_class_doc(cls))
                for field in fields if arguments else ():
                    hint = self.resolve(field.hint) if isinstance(field.hint, str) else field.hint
                    field.hint = _substituted(hint, arguments or {})
                return self.object(fields, descriptions, text, cls if not issubclass(cls, dict) else None)
            finally:
                self.scopes, self.where = inner, where

        return self.named(key, build)

    def named(self, key: Any, build: Callable[[], _Kind]) -> _Kind:
        """The kind of a class or alias in ``$defs``, which may refer to itself."""
        base = (key[0] if isinstance(key, tuple) else key).__name__
        name, number = base, 1
        while name in self.definitions:
            number += 1
            name = f"{base}{number}"
        self.definitions[name] = {}
        kind = _Kind({"$ref": f"#/$defs/{name}"}, lambda *given: built.load(*given), True)
        self.classes[key] = kind
        built = build()
        self.definitions[name] = built.schema
        kind.load, kind.is_plain = built.load, built.is_plain
        return kind

    def object(
        self,
        fields: Sequence[_Field],
        descriptions: Mapping[str, str],
        text: str = "",
        build: Callable[..., Any] | None = None,
        rest: _Kind | None = None,
    ) -> _Kind:
        """An object with fields; ``rest`` is the kind of undeclared fields."""
        properties: dict[str, Any] = {}
        kinds: dict[str, _Kind] = {}
        for field in fields:
            kind = kinds[field.name] = field.kind or self.compile(field.hint)
            schema = dict(kind.schema)
            if field.name in descriptions:
                schema.setdefault("description", descriptions[field.name])
            default = _json_default(field.default)
            if not field.required and default is not None:
                schema["default"] = default
            properties[field.name] = schema
        document: dict[str, Any] = {"type": "object"}
        if text:
            document["description"] = text
        document["properties"] = properties
        required = [field.name for field in fields if field.required]
        if required:
            document["required"] = required
        if rest is not None and rest.schema:
            document["additionalProperties"] = rest.schema
        elif rest is None and not self.is_output:
            document["additionalProperties"] = False
        filled = [field for field in fields if _is_field_info(field.default)]

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if not isinstance(value, dict):
                return _wrong(value, at, "object", problems)
            before = len(problems)
            result = {}
            for name, one in value.items():
                known = kinds.get(name, rest)
                if known is not None:
                    result[name] = known.load(one, f"{at}/{_escape(name)}", problems)
                else:
                    expected = f"only the properties {', '.join(kinds)}" if kinds else "no properties"
                    hint = _did_you_mean(name, kinds)
                    problem = _Problem(f"{at}/{_escape(name)}", expected, f"`{name[:_MAX_QUOTE]}`", suggestion=hint)
                    problems.append(problem)
            for name in required:
                if name not in value:
                    about = properties[name].get("description", "a value").rstrip(".")
                    problems.append(_Problem(f"{at}/{_escape(name)}", about, "nothing", missing=name))
            if len(problems) > before:
                return None
            for field in filled:
                if field.name not in result and not field.required:
                    result[field.name] = field.default.get_default(call_default_factory=True)
            if build is None:
                return result
            try:
                return build(**result)
            except (ValueError, AssertionError) as error:
                problems.append(_Problem(at, f"a valid {document.get('title', 'value')} ({error})", _quote(value)))

        is_plain = build is None and not filled and all(kind.is_plain for kind in kinds.values())
        return _Kind(document, load, is_plain and (rest is None or rest.is_plain))

    def pydantic(self, hint: Any) -> _Kind:
        """A type that pydantic knows. It is imported, since the annotation is from it."""
        import pydantic

        adapter: Any = pydantic.TypeAdapter(hint)
        mode = "serialization" if self.is_output else "validation"
        schema = _without_titles(adapter.json_schema(mode=mode, ref_template="#/$defs/{model}"))
        for name, definition in schema.pop("$defs", {}).items():
            if self.definitions.setdefault(name, definition) != definition:
                raise self.fail(hint, f"which defines a second type `{name}`", "rename one of the two")

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            try:
                return adapter.validate_python(value)
            except pydantic.ValidationError as error:
                for one in error.errors(include_url=False):
                    place = at + "".join(f"/{_escape(str(step))}" for step in one["loc"])
                    missing = str(one["loc"][-1]) if one["type"] == "missing" else None
                    problems.append(_Problem(place, one["msg"], _quote(_or_text(one["input"])), missing=missing))

        if isinstance(hint, type) and "properties" in schema:
            return self.named(hint, lambda: _Kind(schema, load))
        return _Kind(schema, load)


def _escape(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _is_json(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool)


def _or_text(value: Any) -> Any:
    from ._encoding import encode

    try:
        return encode(value)
    except ToolError:
        return str(value)


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("type")
    if not schema or (isinstance(found, list) and "null" in found):
        return schema
    if not found:
        return {"anyOf": [schema, {"type": "null"}]}
    nullable = {**schema, "type": [*([found] if isinstance(found, str) else found), "null"]}
    if "enum" in schema:
        nullable["enum"] = [*schema["enum"], None]
    return nullable


def _without_titles(schema: Any) -> Any:
    """A schema of pydantic without the titles that repeat names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties"):
            tidy[key] = {name: _without_titles(item) for name, item in value.items()}
        elif key in ("default", "enum", "const", "examples"):
            tidy[key] = value
        elif key != "title":
            tidy[key] = _without_titles(value)
    return tidy


def _substituted(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    """A hint with the arguments of its generic class."""
    if type(hint).__name__ == "TypeVar":
        return arguments.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(arguments.get(one, one) for one in parameters)] if parameters else hint


def _is_field_info(default: Any) -> bool:
    return type(default).__name__ == "FieldInfo" and hasattr(default, "get_default")


def _json_default(default: Any) -> Any:
    """A default as JSON; None if it has no JSON form, or if JSON lacks a value for it."""
    from ._encoding import encode

    if _is_field_info(default):
        default = None if default.is_required() else default.get_default()
    try:
        return encode(default)
    except ToolError:
        return None


def _class_doc(cls: Any) -> str:
    """The docstring that the author of a class wrote."""
    text = cls.__dict__.get("__doc__")
    # A dataclass and a NamedTuple without a docstring have their signature, a dataclass of Python 3.15 an object.
    return text if isinstance(text, str) and not text.startswith(f"{cls.__name__}(") else ""


def _fields_of(cls: Any, is_output: bool) -> list[_Field] | None:
    """The fields of a dataclass, a NamedTuple or a TypedDict; None for another class."""
    if hasattr(cls, "__dataclass_fields__"):
        missing = sys.modules["dataclasses"].MISSING
        fields = []
        for field in cls.__dataclass_fields__.values():
            is_init_only = field._field_type.name == "_FIELD_INITVAR"
            if field._field_type.name == "_FIELD_CLASSVAR" or (is_init_only if is_output else not field.init):
                continue
            hint = getattr(field.type, "type", field.type) if is_init_only else field.type
            default = field.default if field.default_factory is missing else field.default_factory()
            is_required = is_output or default is missing
            fields.append(_Field(field.name, hint, is_required, None if default is missing else default))
        return fields
    annotations: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations.update(getattr(base, "__annotations__", None) or {})
    if tuple in cls.__mro__ and hasattr(cls, "_fields"):
        defaults = cls._field_defaults
        return [
            _Field(name, annotations.get(name, object), is_output or name not in defaults, defaults.get(name))
            for name in cls._fields
        ]
    if dict in cls.__mro__ and hasattr(cls, "__total__"):
        optional = getattr(cls, "__optional_keys__", () if cls.__total__ else set(annotations))
        fields = []
        for name, hint in annotations.items():
            text = hint if isinstance(hint, str) else getattr(hint, "__forward_arg__", "")
            form = _form(getattr(hint, "__origin__", None)) or text.split("[")[0].rsplit(".", 1)[-1]
            required = {"Required": True, "NotRequired": False}.get(form, name not in optional)
            fields.append(_Field(name, hint, required))
        return fields
    return None
