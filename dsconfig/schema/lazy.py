"""Blocks that are imported on demand, and unions discriminated by ``type``."""

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast

from pydantic_core import SchemaValidator, core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

    from dsconfig.schema.declare import Block
    from dsconfig.schema.version import Version

JsonSchema = dict[str, Any]
LAZY_MARK, VARIANTS_MARK = "x-lazy", "x-variants"
"""Keys that represent a block in pydantic's JSON Schema output."""


class Lazy:
    """Reference to a block in a module of ``dsconfig.schema.blocks``."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name
        self._block: type[Block] | None = None

    def load(self) -> "type[Block]":
        """Return the block; its module is imported on first use."""
        block = self._block
        if block is None:
            module = import_module(f"dsconfig.schema.blocks.{self.module}")
            block = self._block = cast("type[Block]", getattr(module, self.name))
        return block

    def validate(self, value: Any) -> Any:
        # Locations of a nested ValidationError are relative to this block.
        return self.load().model_validate(value)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        return {LAZY_MARK: self}


_BLOCKS = "dsconfig.schema.blocks."


class _BlockModule(ModuleType):
    """Substitute for a module of blocks: each attribute is a :class:`Lazy` reference."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Annotated[Any, Lazy(self.__name__.removeprefix(_BLOCKS), name)]


class _BlockModuleLoader(Loader):
    """Finder and loader of substitute modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(_BLOCKS) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _BlockModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def lazy_blocks() -> Generator[None]:
    """Import blocks lazily: inside, ``from dsconfig.schema.blocks.fp16 import FP16`` yields a
    reference that is loaded on demand. Type checkers see the block itself."""
    loaded = _unload()
    finder = _BlockModuleLoader()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _unload()
        for name, module in loaded.items():
            sys.modules[name] = module
            setattr(sys.modules[_BLOCKS[:-1]], name.removeprefix(_BLOCKS), module)


def _unload() -> dict[str, ModuleType]:
    """Remove loaded block modules from ``sys.modules`` and return them."""
    names = [name for name in sys.modules if name.startswith(_BLOCKS)]
    for name in names:
        vars(sys.modules[_BLOCKS[:-1]]).pop(name.removeprefix(_BLOCKS), None)
    return {name: sys.modules.pop(name) for name in names}


class NamedType(Protocol):
    """Entry of a table of types: the module with its arguments, and the releases that know it."""

    @property
    def block(self) -> str: ...

    def is_known_at(self, release: "Version") -> bool: ...


class Variants:
    """Union discriminated by the sibling key ``type``.

    Only the branch in use is loaded. Names match exactly; those in ``any_case`` are
    case-insensitive.
    """

    def __init__(
        self,
        types: Mapping[str, NamedType],
        *,
        any_case: tuple[str, ...] = (),
        nullable: bool = False,
    ) -> None:
        self.types = types
        self.blocks = blocks = {name: Lazy(type_.block, name) for name, type_ in types.items()}
        self.any_case = any_case
        self.nullable = nullable
        self._lowered = {name.lower(): blocks[name] for name in any_case}

    def find(self, name: Any) -> Lazy | None:
        """Return the branch of a type, or None if it is unknown."""
        if not isinstance(name, str):
            return None
        return self._lowered.get(name.lower()) or self.blocks.get(name)

    def validate(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        block = self.find(info.data.get("type"))
        if value is None and self.nullable:
            return None
        # The keys of an unknown type cannot be checked; the type itself is reported.
        return block.validate(value) if block else _any_mapping(value)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: "GetCoreSchemaHandler"
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: "GetJsonSchemaHandler"
    ) -> JsonSchema:
        return {VARIANTS_MARK: self}


def _any_mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    return SchemaValidator(core_schema.dict_schema()).validate_python(value)
