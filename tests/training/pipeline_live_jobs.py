"""Jobs that train pipelines with DeepSpeed itself. Each function runs on every rank."""

from typing import Any

from training import pipeline_jobs
from training.curves import Curve


def deepspeed_curve(kind: str, stage: int, stages: int, steps: int, clip: float) -> Curve:
    """Return losses and norms of DeepSpeed, then the evaluation's loss."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec

    def theirs(spec: Any) -> Any:
        if isinstance(spec, pipeline_jobs.TiedLayerSpec):
            arguments: Any = spec.key, spec.typename, *spec.module_args
            return TiedLayerSpec(*arguments, forward_fn=spec.forward_fn)
        if isinstance(spec, pipeline_jobs.LayerSpec):
            return LayerSpec(spec.typename, *spec.module_args)
        return spec

    deepspeed.init_distributed(dist_backend="gloo")
    module = PipelineModule(
        [*map(theirs, pipeline_jobs.specs_of(kind))],
        num_stages=stages,
        loss_fn=pipeline_jobs.loss_of,
        partition_method="uniform",
        seed_layers=True,
        base_seed=pipeline_jobs.SEED,
    )
    config = pipeline_jobs.config_of(stage, 4, clip)
    engine: Any = deepspeed.initialize(model=module, config=config)[0]
    curve: Curve = []
    replica, replicas = engine.grid.get_data_parallel_rank(), engine.grid.data_parallel_size
    for step in range(steps):
        loss = engine.train_batch(pipeline_jobs.batches_of(step, 4, replica, replicas))
        curve.append((loss.item(), float(engine.get_global_grad_norm())))
    loss = engine.eval_batch(pipeline_jobs.batches_of(steps, 4, replica, replicas))
    return [*curve, (loss.item(), 1.0)]
