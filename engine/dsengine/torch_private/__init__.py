"""Every private PyTorch name the engine uses. No other package of dsengine uses any.

Each file states why no public API is enough and what is assumed. ``tests/engine_torch`` checks
the installed torch against every file; run it with a new torch release to list what changed.

Patched for the whole process within a ``with`` block: ``UntypedStorage.resize_``
(``observe_resizes``), ``torch.distributed.get_backend``, ``torch.cuda.is_available`` and
``torch.accelerator.current_accelerator`` (``fake_process_group``). Patched from the first engine at
stages 1 to 3: hooks of ``fully_shard``, without another result (``reduce_hook_costs``). Patched
from the moment samples are divided: the gradient of ``torch.distributed.nn.functional.all_gather``
over gloo (``correct_all_gather_gradient``). Changed on a model under an engine: a module's
parameter table (``replace_parameter_table``), how it is copied and pickled (``make_copyable``),
torch's mark of a model that generates (``generate_alone``) and the hooks with which ``fully_shard``
swaps shards into state dicts (``remove_state_dict_hooks``). All of these and ``fully_shard`` itself
are removed when another ``initialize`` takes the model over (``remove_fully_shard``).
"""
