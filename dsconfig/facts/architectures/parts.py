"""Modules under construction, with names relative to their parent."""

from dataclasses import dataclass, replace

from dsconfig.facts.model import Architecture, ModuleFact, TensorFact


@dataclass(frozen=True, slots=True)
class Part:
    """A module with a name relative to its parent."""

    name: str
    type: str
    parameters: tuple[TensorFact, ...] = ()
    children: tuple["Part", ...] = ()
    repeated: bool = False

    def placed(self, prefix: str = "") -> ModuleFact:
        """Return the finished module, named below ``prefix``."""
        name = f"{prefix}.{self.name}" if prefix and self.name else prefix or self.name
        return ModuleFact(
            name=name,
            type=self.type,
            parameters=self.parameters,
            children=tuple(child.placed(name) for child in self.children),
            repeated=self.repeated,
        )


def linear(name: str, inputs: int, outputs: int, *, bias: bool = False, tied: str = "") -> Part:
    """Return a Linear; ``tied`` names the parameter that shares its weight."""
    weight = TensorFact("weight", (outputs, inputs), storage=tied)
    return Part(name, "Linear", (weight, TensorFact("bias", (outputs,))) if bias else (weight,))


def conv1d(name: str, inputs: int, outputs: int) -> Part:
    """Return GPT-2's Conv1D: a Linear with transposed weight and a bias."""
    weight = TensorFact("weight", (inputs, outputs))
    return Part(name, "Conv1D", (weight, TensorFact("bias", (outputs,))))


def embedding(name: str, rows: int, width: int, *, tied: str = "") -> Part:
    return Part(name, "Embedding", (TensorFact("weight", (rows, width), storage=tied),))


def layer_norm(name: str, width: int) -> Part:
    return Part(name, "LayerNorm", (TensorFact("weight", (width,)), TensorFact("bias", (width,))))


def rms_norm(name: str, width: int) -> Part:
    return Part(name, "RMSNorm", (TensorFact("weight", (width,)),))


def group(name: str, type_: str, *children: Part | None) -> Part:
    """Return a module with children, without those that are None."""
    return Part(name, type_, children=tuple(child for child in children if child is not None))


def stack(name: str, block: Part, count: int) -> Part:
    """Return a ModuleList of ``count`` equal blocks, each marked as repeated."""
    return stack_of(name, (block,) * count)


def stack_of(name: str, blocks: tuple[Part, ...]) -> Part:
    """Return a ModuleList of blocks that may differ, each marked as repeated."""
    numbered = (
        replace(block, name=str(index), repeated=True) for index, block in enumerate(blocks)
    )
    return Part(name, "ModuleList", children=tuple(numbered))


def language_model(
    sizes: Architecture, type_: str, body: Part, table: str = "", *, bias: bool = False
) -> Part:
    """Return ``body`` with a head, which shares the embedding ``table`` if the sizes tie them."""
    tied = f"{body.name}.{table}.weight" if table and sizes.tied_embeddings else ""
    head = linear("lm_head", sizes.hidden_size, sizes.vocab_size, bias=bias, tied=tied)
    return group("", type_, body, head)
