"""What dsengine refuses in pipelines."""

from dsconfig.features.table import FEATURES
from dsconfig.mesh import Mesh
from dsconfig.runtimes.effective import Effective


def refused_in_pipeline(effective: Effective, mesh: Mesh | None = None) -> str:
    """Return why dsengine does not train a PipelineModule with a config, on the ranks of ``mesh``;
    "" if it does."""
    zero, gradients = effective.zero, effective.gradients
    offloads = zero.offload_optimizer is not None or zero.offload_param is not None
    combines = mesh is not None and (mesh.tensor > 1 or mesh.sequence > 1 or mesh.expert > 1)
    cases = {
        "pipeline_stages": zero.stage > 1,
        "pipeline_combinations": combines,
        "pipeline_offload": offloads,
        "pipeline_sparse_gradients": gradients.sparse,
        "pipeline_accumulation": not gradients.managed_accumulation,
    }
    return next((FEATURES[name].text for name, applies in cases.items() if applies), "")
