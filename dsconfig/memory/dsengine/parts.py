"""The components of a dsengine run, each with the key that causes it."""

from dsconfig.memory.timeline import Part

_ZERO = "/zero_optimization"
_STAGE = f"{_ZERO}/stage"

MASTER = Part("fp32 master weights", _STAGE, "4 per element, divided by the ranks")
MOMENTS = Part("optimizer state", "/optimizer/type", "state bytes per owned element")
GRADIENTS = Part("gradient shards", _STAGE, "4 per owned element, backward to step")
WHOLE = Part("weights whole at rest", _STAGE, "w per element below stage 3")
GATHERED = Part("gathered units", _STAGE, "w per element of the units in use")
GATHER_BUFFER = Part(
    "gather buffer", f"{_ZERO}/reduce_bucket_size", "one unit once more, while it is gathered"
)
UNIT_GRADIENTS = Part("gradients of a unit", _STAGE, "w per element until they are reduced")
WHOLE_GRADIENTS = Part(
    "gradients not yet reduced", "/gradient_accumulation_steps", "w per element, stage 1 only"
)
REDUCE_INPUT = Part(
    "reduce-scatter input", "/communication_data_type", "one unit, in the reduction dtype"
)
REDUCE_OUTPUT = Part("reduce-scatter output", "/communication_data_type", "one unit / ranks")
TEMPORARIES = Part("optimizer temporaries", "/optimizer/type", "unfused kernels only")
SCRATCH = Part("offload staging", f"{_ZERO}/offload_optimizer", "one sub-group on its way")
