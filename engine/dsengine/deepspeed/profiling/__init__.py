"""Cost of a model: ``from dsengine.profiling.flops_profiler import get_model_profile``."""
