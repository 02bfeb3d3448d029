"""What is known about the model, the hardware and the training run, with the origin of each fact.

Names are imported on first use, because most checks need no facts.
"""

from typing import TYPE_CHECKING

from dsconfig.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from dsconfig.facts.facts import Facts as Facts
    from dsconfig.facts.gathering import gather as gather
    from dsconfig.facts.hf_config import architecture_of as architecture_of
    from dsconfig.facts.inputs import FactError as FactError
    from dsconfig.facts.machine import DeviceFacts as DeviceFacts
    from dsconfig.facts.machine import HostFacts as HostFacts
    from dsconfig.facts.model import Architecture as Architecture
    from dsconfig.facts.model import ModelTree as ModelTree
    from dsconfig.facts.model import ModuleFact as ModuleFact
    from dsconfig.facts.model import TensorFact as TensorFact
    from dsconfig.facts.training import TrainingFacts as TrainingFacts

__getattr__, __all__ = lazy_attributes(__name__)
