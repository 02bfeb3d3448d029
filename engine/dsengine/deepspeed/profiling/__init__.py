"""What a model costs: ``from dsengine.profiling.flops_profiler import get_model_profile``."""
