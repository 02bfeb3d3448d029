"""Blocks that are imported when a file has them, and unions that their ``type`` decides."""

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
"""What the makers of JSON Schemas read in the place of a block."""


class Lazy:
    """Marker of a block in a module below ``dsconfig.schema.blocks``."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def load(self) -> "type[Block]":
        return getattr(import_module(f"dsconfig.schema.blocks.{self.module}"), self.name)

    def validate(self, value: Any) -> Any:
        # A ValidationError raised in here keeps its places below the place of the block.
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


class _StandIn(ModuleType):
    """In place of a module of blocks: each name it is asked for is the marker of a block."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Annotated[Any, Lazy(self.__name__.removeprefix(_BLOCKS), name)]


class _StandIns(Loader):
    """Finds and loads stand-ins."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(_BLOCKS) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def lazy_blocks() -> Generator[None]:
    """Import blocks as markers: inside, ``from dsconfig.schema.blocks.fp16 import FP16`` names a
    block that is loaded when a file has it. A type checker sees the block itself."""
    loaded = _taken_out()
    finder = _StandIns()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _taken_out()
        for name, module in loaded.items():
            sys.modules[name] = module
            setattr(sys.modules[_BLOCKS[:-1]], name.removeprefix(_BLOCKS), module)


def _taken_out() -> dict[str, ModuleType]:
    """The modules of blocks that are loaded, which the next import looks for anew."""
    names = [name for name in sys.modules if name.startswith(_BLOCKS)]
    for name in names:
        vars(sys.modules[_BLOCKS[:-1]]).pop(name.removeprefix(_BLOCKS), None)
    return {name: sys.modules.pop(name) for name in names}


class NamedType(Protocol):
    """One line of a table of types: the module with its arguments, and who knows it."""

    @property
    def block(self) -> str: ...

    def is_known_at(self, release: "Version") -> bool: ...


class Variants:
    """Marker of a mapping whose keys depend on the ``type`` beside it: a discriminated union.

    Only the branch that a file names is loaded. Names are matched exactly, those of
    ``any_case`` in any letter case.
    """

    def __init__(
        self,
        types: Mapping[str, NamedType],
        *,
        any_case: tuple[str, ...] = (),
        nullable: bool = False,
    ) -> None:
        self.types = types
        self.blocks = blocks = {name: Lazy(each.block, name) for name, each in types.items()}
        self.any_case = any_case
        self.nullable = nullable
        self._lowered = {name.lower(): blocks[name] for name in any_case}

    def find(self, name: Any) -> Lazy | None:
        """The branch of a type, None where no such type is known."""
        if not isinstance(name, str):
            return None
        return self._lowered.get(name.lower()) or self.blocks.get(name)

    def validate(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        block = self.find(info.data.get("type"))
        if value is None and self.nullable:
            return None
        # With an unknown type nothing is known of the keys; the type is at fault, not they.
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
