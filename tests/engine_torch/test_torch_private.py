"""Contract of ``dsengine.torch_private`` with the installed torch; messages state the consequence.

Runs in one process: a gloo group of one rank, or torch's fake group of two.
"""

import copy
import importlib
import io
import pickle
import pickletools
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from dsengine.topology import all_ranks
from dsengine.torch_private.dry_runs import fake_process_group, fake_tensors, is_fake
from dsengine.torch_private.groups import (
    COLLECTIVES,
    GLOO_THREAD,
    abort_communicators,
    all_gather_flat,
    arguments_of_each,
    arm_reducer,
    broadcast_coalesced,
    collective_of,
    concatenated,
    correct_all_gather_gradient,
    default_store,
    flattened,
    issued_collectives,
    start_gathers,
    supports_device,
    unflattened,
)
from dsengine.torch_private.modules import (
    MoveAwareModule,
    children_of,
    parameter_table,
    persistent_buffers,
    replace_parameter_table,
)
from dsengine.torch_private.optimizers import step_hooks_once
from dsengine.torch_private.pickles import (
    metadata_path,
    named_in_checkpoint_metadata,
    named_in_tensor_files,
)
from dsengine.torch_private.removal import hooks_below, make_copyable, remove_fully_shard
from dsengine.torch_private.tensors import (
    as_shard,
    at_end_of_backward,
    backward_hooks_of,
    foreach_copy_,
    foreach_lerp,
    foreach_lerp_,
    foreach_mul_,
    foreach_norm,
    foreach_step_by_sign_,
    is_functorch_tensor,
    local_part,
    observe_resizes,
    plain_tensors,
    preserve_versions,
    shard_slices,
    storage_key,
    version_of,
)
from dsengine.torch_private.units import (
    is_gathered,
    reduce_late_gradients,
    remove_state_dict_hooks,
    reshard_within,
    sharded_parameters,
    sharded_parameters_of,
    units_of,
    unshard_asynchronously,
)
from narrowing import of_type
from waiting import until

pytestmark = pytest.mark.torch


@contextmanager
def one_rank() -> Iterator[None]:
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def alone() -> Iterator[None]:
    with one_rank():
        yield


DTYPES = ((2, torch.float32), (3, torch.bfloat16))


def _seen(sent: list[tuple[str, Any]]) -> Any:
    """Return a context that records names and arguments of collectives."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if (name := collective_of(func)) is not None:
                sent.append((name, args))
            return func(*args, **(kwargs or {}))

    return Seen()


class Tied(nn.Module):
    """Two layers that share a weight, and a non-persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("saved_buffer", torch.ones(1))
        self.register_buffer("transient", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).sum()


def unit_of(model: nn.Module, **policy: Any) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return fully_shard(model, mesh=mesh, reshard_after_forward=True, **policy)


@pytest.mark.usefixtures("alone")
class TestUnits:
    def test_fully_shard_can_be_removed(self) -> None:
        model = Tied()
        before = hooks_below(model)
        unit_of(model)(torch.ones(1, 4)).backward()
        added = hooks_below(model) - before
        remove_fully_shard(model, added)
        assert type(model) is Tied and hooks_below(model) == before, (
            "fully_shard leaves state on a module that its hook tables do not show: a second "
            "initialize of a model would train with remains of the first"
        )
        model.first.weight = model.second.weight = nn.Parameter(torch.ones(4, 4))
        unit_of(model)  # would refuse a module that is still sharded

    def test_unit_lists_parameters_and_owners(self) -> None:
        model = Tied()
        (parameter,) = sharded_parameters(unit_of(model))
        assert parameter.owners == [(model.first, "weight"), (model.second, "weight")], (
            "FSDPParam._module_info no longer lists every module that shares a parameter: tied "
            "weights would be saved and gathered twice"
        )
        assert parameter.owner is model.first
        assert isinstance(parameter.shard, DTensor), (
            "FSDPParam.sharded_param is no longer a DTensor"
        )
        assert model.first.weight is parameter.shard, (
            "the module does not hold FSDPParam.sharded_param between uses"
        )
        assert (parameter.rank, parameter.ranks, parameter.is_on_host) == (0, 1, False)
        assert not parameter.was_gathered, "FSDPParam creates the full parameter before a gather"

    def test_module_that_is_not_a_unit(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        unit_of(model[0])
        assert units_of(model) == [model[0]]
        outer = unit_of(model)
        assert units_of(model) == [model, model[0]]
        assert len(list(sharded_parameters(outer))) == 2, "a unit yields parameters of nested units"

    def test_modules_of_one_unit_yield_each_parameter_once(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(list(model), mesh=mesh)
        assert len(sharded_parameters_of(units_of(model))) == 4

    def test_flat_memory_of_shard_and_full_parameter(self) -> None:
        unit = unit_of(Tied())
        (parameter,) = sharded_parameters(unit)
        local = local_part(parameter.shard)
        assert parameter.flat_shard.data_ptr() == local.data_ptr(), (
            "FSDPParam._sharded_param_data is not the memory of the shard: offload to NVMe and "
            "shards inside full parameters would train a copy"
        )
        unit.unshard()
        assert is_gathered(unit)
        assert parameter.was_gathered
        assert parameter.unsharded.data_ptr() == parameter.flat_unsharded.data_ptr(), (
            "FSDPParam.all_gather_outputs[0] is not the memory of the full parameter: stages 1 "
            "and 2 would compute with the weights of the first step"
        )
        unit.reshard()
        assert not is_gathered(unit)
        assert parameter.flat_unsharded.untyped_storage().nbytes() == 0, (
            "resharding no longer empties the gathered storage: memory is not freed"
        )

    def test_shard_can_use_other_memory(self) -> None:
        unit = unit_of(Tied())
        (parameter,) = sharded_parameters(unit)
        shard, memory = parameter.shard, parameter.flat_shard.clone()
        parameter.use_memory(memory)
        memory.fill_(2.0)
        unit.unshard()
        assert parameter.shard is shard
        assert parameter.unsharded.eq(2.0).all(), (
            "a gather no longer reads FSDPParam._sharded_param_data: parameters on NVMe or inside "
            "full ones would not be gathered"
        )

    def test_shard_can_be_replaced_before_first_gather(self) -> None:
        model = Tied()
        unit = unit_of(model)
        (parameter,) = sharded_parameters(unit)
        parameter.replace(torch.full((4, 4), 3.0, dtype=torch.bfloat16))
        assert model.first.weight is model.second.weight is parameter.shard, (
            "FSDPParam._setattr_on_modules does not reach every owner"
        )
        assert parameter.shard.dtype is torch.bfloat16
        unit.unshard()
        assert parameter.unsharded.dtype is torch.bfloat16
        assert parameter.unsharded.eq(3.0).all(), (
            "FSDPParam.reset_sharded_param keeps the old values"
        )

    def test_modules_can_have_a_view(self) -> None:
        model = Tied()
        unit = unit_of(model)
        (parameter,) = sharded_parameters(unit)
        shard, view = parameter.shard, nn.Parameter(torch.zeros(2))
        seen: list[bool] = []
        parameter.set_view(view)
        assert model.first.weight is model.second.weight is parameter.view is view
        cast(Any, unit)(torch.ones(1, 4)).backward()
        assert shard.grad is not None and model.first.weight is view, (
            "FSDPParam._setattr_on_modules is not how a module gets its shards back"
        )
        model.load_state_dict({}, strict=False)
        assert parameter.shard is shard and model.first.weight is view, (
            "FSDPParam.reset_sharded_param is not what reads a shard back from a module"
        )
        parameter.set_view(view, lambda _, found: seen.append(found is view))
        model.load_state_dict({"first.weight": torch.ones(2)}, strict=False, assign=True)
        assert not all(seen) and model.second.weight is view and parameter.shard is shard, (
            "FSDPParam.reset_sharded_param is not what reads a shard back from a module"
        )
        parameter.set_view(shard)
        assert model.first.weight is parameter.view is shard

    def test_full_parameter_can_be_kept(self) -> None:
        unit = unit_of(Tied())
        unit.unshard()
        (parameter,) = sharded_parameters(unit)
        parameter.keep_unsharded()
        unit.reshard()
        assert parameter.flat_unsharded.untyped_storage().nbytes(), (
            "resharding does not free through FSDPParam.free_unsharded_param: shards inside full "
            "parameters would be freed with them"
        )

    def test_late_gradients_are_reduced(self) -> None:
        unit = unit_of(Tied())
        cast(Any, unit)(torch.ones(1, 4)).backward()
        (parameter,) = sharded_parameters(unit)
        once = local_part(cast(Tensor, parameter.shard.grad)).clone()
        assert not parameter.has_late_gradient
        unit.unshard()
        parameter.unsharded.grad = torch.ones_like(parameter.unsharded)
        assert parameter.has_late_gradient, (
            "FSDPParam._unsharded_param is not where late gradients arrive: directly used weights "
            "would lose them"
        )
        assert [gradient.sum().item() for gradient in parameter.unreduced()] == [16.0]
        reduce_late_gradients(unit)
        again = local_part(cast(Tensor, parameter.shard.grad))
        assert torch.equal(again, once + 1.0), (
            "FSDPParamGroup.post_backward does not add late gradients"
        )
        assert not list(parameter.unreduced())
        cast(Any, unit)(torch.ones(1, 4)).backward()  # its state is that of a unit between steps

    def test_unreduced_sums_are_visible(self) -> None:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        unit = unit_of(Tied(), mp_policy=policy)
        unit.set_requires_gradient_sync(False)
        cast(Any, unit)(torch.ones(1, 4)).backward()
        (parameter,) = sharded_parameters(unit)
        assert [gradient.dtype for gradient in parameter.unreduced()] == [torch.float32], (
            "FSDPParam.unsharded_accumulated_grad is not where gradients accumulate: "
            "offload_states would leave them on the device"
        )

    def test_state_dicts_can_be_plain(self) -> None:
        model = Tied()
        unit = unit_of(model)
        unit.unshard()
        remove_state_dict_hooks(unit)
        values = model.state_dict()
        assert not isinstance(values["first.weight"], DTensor), (
            "fully_shard uses other hooks to put shards into a state dict: below stage 3 state "
            "dicts would contain shards"
        )
        model.load_state_dict({name: torch.zeros_like(value) for name, value in values.items()})
        (parameter,) = sharded_parameters(unit)
        assert is_gathered(unit)
        assert parameter.unsharded.eq(0.0).all()

    def test_unsharded_model_can_be_copied(self) -> None:
        model = Tied()
        unit = unit_of(model)
        unit.unshard()
        make_copyable(model)
        copied = copy.deepcopy(model)
        assert type(copied) is Tied, "fully_shard marks a module's class differently"
        assert copied.first.weight is copied.second.weight
        assert not isinstance(copied.first.weight, DTensor)
        left = [
            key
            for key in copied.__dict__
            if key not in Tied().__dict__ or (key.endswith("_hooks") and copied.__dict__[key])
        ]
        assert left == [], (
            f"fully_shard sets new attributes on a module, which copies inherit: {left}"
        )
        copied(torch.ones(1, 4)).backward()
        with torch.no_grad():
            copied.first.weight.zero_()
        assert not model.first.weight.eq(0.0).all()

    def test_unshard_can_be_asynchronous(self) -> None:
        unit = unit_of(Tied())
        unshard_asynchronously(unit)
        cast(Any, unit)(torch.ones(1, 4)).backward()


def test_issued_collectives_are_counted_by_group() -> None:
    with one_rank():
        assert issued_collectives() == {}, "a single rank has nothing to agree on"
        backend = cast(Any, dist.group.WORLD)._get_backend(torch.device("cpu"))
        before = backend._get_sequence_number_for_group()
        dist.all_reduce(torch.ones(1))
        after = backend._get_sequence_number_for_group()
        assert (backend.name(), after - before) == ("gloo", 1), "ranks that ran ahead are not found"


def test_units_share_a_reshard_group() -> None:
    with fake_process_group(0, 4, "gloo"):
        mesh = init_device_mesh("cpu", (4,))
        units = [
            fully_shard(nn.Linear(8, 8), mesh=mesh, reshard_after_forward=fewer)
            for fewer in (2, True)
        ]
        mesh_info = reshard_within(units[0])
        assert mesh_info.shard_mesh_size == 2, "FSDPParamGroup.post_forward_mesh_info has changed"
        assert reshard_within(units[1], mesh_info) is mesh_info
        assert reshard_within(units[1]).shard_mesh_size == 2


def test_axes_of_a_mesh_are_flattened_divided_and_concatenated() -> None:
    with fake_process_group(5, 8, "gloo"):
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
        flat = flattened(mesh["b", "c"], "bc")
        assert flat is flattened(mesh["b", "c"], "bc"), "creates the group again"
        assert dist.get_process_group_ranks(flat.get_group()) == [4, 5, 6, 7]
        both = concatenated([mesh["a"], flat])
        assert (both.mesh_dim_names, both.shape) == (("a", "bc"), (2, 4))
        assert both.get_group("bc") is flat.get_group()
        halves = unflattened(flat, {"x": 2, "y": 2})
        assert dist.get_process_group_ranks(halves.get_group("x")) == [5, 7]
        assert dist.get_process_group_ranks(halves.get_group("y")) == [4, 5]


@pytest.mark.usefixtures("alone")
class TestShards:
    def test_as_shard_shares_memory(self) -> None:
        mesh = init_device_mesh("cpu", (1,))
        like = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
        part = torch.ones(4, 2, dtype=torch.bfloat16)
        shard = as_shard(part, like)
        assert shard.placements == like.placements
        assert shard.dtype is torch.bfloat16
        assert local_part(shard).data_ptr() == part.data_ptr(), (
            "DTensor(local, spec) copies: an offloaded optimizer would step a copy"
        )

    def test_local_part_is_the_same_tensor(self) -> None:
        mesh = init_device_mesh("cpu", (1,))
        shard = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
        before = version_of(local_part(shard))
        local_part(shard).add_(1.0)
        assert version_of(local_part(shard)) == before + 1
        plain = torch.zeros(1)
        assert local_part(plain) is plain

    def test_preserve_versions_of_aliased_shard(self) -> None:
        full = torch.zeros(4)
        shard, before = full[:2], version_of(full)
        with preserve_versions([full]):
            full.add_(1.0)
        assert version_of(shard) == before, (
            "masters on the host would be overwritten by 16-bit shards after every step"
        )


def test_step_hooks_run_once_around_many_steps() -> None:
    optimizer, output = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), list[str]()
    optimizer.register_step_pre_hook(lambda *_: output.append("before"))
    optimizer.register_step_post_hook(lambda *_: output.append("after"))

    def many() -> None:
        for _ in range(2):
            optimizer.step()
            output.append("step")

    step_hooks_once(optimizer, many)
    assert output == ["before", "step", "step", "after"], "a step's hooks are stored elsewhere"
    optimizer.step()
    assert output[4:] == ["before", "after"], "step hooks are lost"


def test_shard_slices_of_a_rank() -> None:
    with fake_process_group(1, 2, "gloo"):
        mesh = init_device_mesh("cpu", (2,))
        shard = DTensor.from_local(torch.zeros(2, 3), mesh, [Shard(0)], shape=torch.Size((5, 3)),
                                   stride=(3, 1))  # fmt: skip
        assert shard_slices(shard) == (slice(3, 5), slice(0, 3)), (
            "compute_local_shape_and_global_offset does not shard like fully_shard: weights would "
            "be read into wrong rows"
        )


class TestModulesAndTensors:
    def test_module_is_notified_of_casts(self) -> None:
        seen: list[str] = []

        class Observed(MoveAwareModule):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(2, 2)

            @contextmanager
            def moving_tensors(self) -> Iterator[None]:
                seen.append(str(self.inner.weight.dtype))
                yield
                seen.append(str(self.inner.weight.dtype))

        result = Observed().half()
        assert seen == ["torch.float32", "torch.float16"], "Module.half no longer runs _apply"
        assert result.inner.weight.dtype is torch.float16

    def test_functorch_tensors_are_detected(self) -> None:
        seen: list[bool] = []

        def square(x: torch.Tensor) -> torch.Tensor:
            seen.append(is_functorch_tensor(x))
            return (x * x).sum()

        plain = torch.ones(2, requires_grad=True)
        torch.func.grad(square)(plain)
        assert seen == [True] and not is_functorch_tensor(plain), (
            "_functorch.is_functorch_wrapped_tensor has changed: torch.func derivatives through "
            "an engine would be divided by the accumulation steps"
        )

    def test_buffers_of_the_state_dict(self) -> None:
        assert [name for name, _ in persistent_buffers(Tied())] == ["saved_buffer"], (
            "Module._non_persistent_buffers_set has changed: checkpoints would change"
        )

    def test_wrapper_names_are_known(self) -> None:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        from dsengine.parameters.names import clean_name

        wrapped = (torch.compile(nn.Linear(1, 1)), checkpoint_wrapper(nn.Linear(1, 1)))
        for module in wrapped:
            assert [clean_name(name) for name, _ in cast(nn.Module, module).named_parameters()] == [
                "weight",
                "bias",
            ], "a torch wrapper uses another name for its content: checkpoints would not match"

    def test_children_are_listed_under_each_name(self) -> None:
        layer = nn.Linear(1, 1)
        assert [n for n, _ in children_of(nn.Sequential(layer, layer))] == ["0", "1"]

    def test_parameter_reads_use_the_table(self) -> None:
        class Table(dict[str, Any]):
            def __getitem__(self, name: str) -> Any:
                read.append(name)
                return super().__getitem__(name)

        read: list[str] = []
        layer = nn.Linear(2, 2)
        replace_parameter_table(layer, Table(parameter_table(layer)))
        layer(torch.ones(1, 2))
        assert sorted(set(read)) == ["bias", "weight"], (
            "Module.__getattr__ does not look parameters up in Module._parameters: a weight that "
            "a forward reads directly would not be gathered at stage 3"
        )

    def test_storage_key_identifies_storage(self) -> None:
        tensor = torch.zeros(4)
        assert storage_key(tensor) == storage_key(tensor[1:])
        assert storage_key(tensor) == storage_key(tensor.untyped_storage())
        assert storage_key(tensor) != storage_key(tensor.clone())

    def test_resizes_are_observed(self) -> None:
        seen: list[tuple[int, int]] = []
        tensor = torch.zeros(4)
        with observe_resizes(lambda storage, before: seen.append((before, storage.nbytes()))):
            tensor.untyped_storage().resize_(0)
        tensor.untyped_storage().resize_(16)
        assert seen == [(16, 0)]

    def test_callback_runs_at_end_of_backward(self) -> None:
        order: list[str] = []
        weight = torch.ones(1, requires_grad=True)
        weight.register_post_accumulate_grad_hook(lambda _: order.append("gradient"))
        product = weight * 2
        product.register_hook(lambda _: at_end_of_backward(lambda: order.append("end")))
        product.backward()
        assert order == ["gradient", "end"], (
            "callbacks queued in a backward run before its gradients are complete"
        )

    def test_plain_tensors_disables_torch_function(self) -> None:
        class Overriding(Tensor):
            @classmethod
            def __torch_function__(
                cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                called.append(func)
                with plain_tensors():
                    return func(*args, **(kwargs or {}))

        called: list[Any] = []
        overriding = torch.ones(2).as_subclass(Overriding)
        _ = overriding + 1
        copied = len(called)
        with plain_tensors(), torch.device("meta"):
            _ = overriding + 1
            assert torch.empty(1).is_meta, "plain_tensors disables a default device"
        assert (copied, len(called)) == (1, 1)

    def test_copies_read_backward_hooks(self) -> None:
        class Recording(Tensor):
            @classmethod
            def __torch_function__(
                cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                calls.append(func)
                return super().__torch_function__(func, types, args, kwargs or {})

        calls: list[Any] = []
        _ = torch.ones(1).as_subclass(Recording)._backward_hooks
        assert backward_hooks_of in calls

    def test_multi_tensor_operations(self) -> None:
        tensors = [torch.tensor([3.0, 4.0]), torch.tensor([1.0])]
        assert [n.item() for n in foreach_norm(tensors)] == [5.0, 1.0]
        foreach_mul_(tensors, 2.0)
        foreach_copy_(tensors[1:], [torch.tensor([7.0], dtype=torch.float64)])
        assert [t.tolist() for t in tensors] == [[6.0, 8.0], [7.0]]
        (halfway,) = foreach_lerp([torch.zeros(1)], [torch.ones(1)], 0.5)
        assert halfway.item() == 0.5
        foreach_lerp_([halfway], [torch.ones(1)], 0.5)
        assert halfway.item() == 0.75
        foreach_step_by_sign_([halfway], [torch.tensor([-3.0])], 0.25)
        assert halfway.item() == 0.5


@pytest.mark.usefixtures("alone")
class TestGroups:
    def test_group_supports_devices(self) -> None:
        assert supports_device(all_ranks(), "cpu")
        assert not supports_device(all_ranks(), "meta")
        assert supports_device(of_type(dist.new_group([0]), dist.ProcessGroup), "cpu")

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads are not calls")
    def test_gloo_threads_have_the_known_name(self) -> None:
        """Without the name a process may end in SIGABRT once in some thousand runs."""

        def names() -> list[str]:
            return [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]

        until("a thread of gloo", lambda: GLOO_THREAD in names())

    def test_the_store_of_the_group(self) -> None:
        default_store().set("dsengine/contract", "value")
        assert default_store().get("dsengine/contract") == b"value"

    def test_many_tensors_are_broadcast(self) -> None:
        tensors = [torch.ones(2), torch.zeros(3, dtype=torch.bfloat16)]
        broadcast_coalesced(tensors, 1024, all_ranks())
        assert tensors[0].eq(1.0).all()

    def test_gradient_of_gathered_values_can_be_replaced(self) -> None:
        functions = importlib.import_module("torch.distributed.nn.functional")
        correct_all_gather_gradient()
        assert functions._AllGather.backward.__module__ == correct_all_gather_gradient.__module__
        value = torch.ones(2, requires_grad=True)
        (gathered,) = functions._AllGather.apply(all_ranks(), value)
        (3 * gathered).sum().backward()
        assert value.grad is not None and value.grad.tolist() == [3, 3]

    def test_single_rank_all_gather(self) -> None:
        full = torch.zeros(2)
        all_gather_flat(full, torch.ones(2))
        assert full.eq(1.0).all()

    def test_many_gathers_are_one_collective(self) -> None:
        pairs = [(torch.zeros(n, dtype=d), torch.ones(n, dtype=d)) for n, d in DTYPES]
        sent: list[tuple[str, Any]] = []
        with _seen(sent):
            start_gathers(pairs, all_ranks()).wait()
            dist.all_reduce(torch.ones(1))
            start_gathers([], all_ranks()).wait()
        names = [COLLECTIVES[name] for name, _ in sent]
        assert names == ["all_gather_into_tensor", "all_reduce"], (
            "the coalescing manager issues each gather by itself, or keeps what comes after it"
        )
        assert all(full.eq(1).all() for full, _ in pairs)
        each = [[tensor.data_ptr() for tensor in one] for one in arguments_of_each(*sent[0])]
        assert each == [[tensor.data_ptr() for tensor in pair] for pair in pairs], (
            "the dispatched arguments are not two lists: comms_logger would count other bytes"
        )

    def test_abort_ignores_groups_without_accelerator(self) -> None:
        abort_communicators()

    def test_reducer_can_be_armed_after_forward(self) -> None:
        model = nn.Linear(2, 1, bias=False)
        parallel = DistributedDataParallel(model, init_sync=False)
        reduced: list[int] = []

        def count(
            state: Any,
            bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
        ) -> torch.futures.Future[Tensor]:
            reduced.append(bucket.buffer().numel())
            future = torch.futures.Future[Tensor]()
            future.set_result(bucket.buffer())
            return future

        parallel.register_comm_hook(None, count)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        assert reduced == [], "a backward without a forward of DistributedDataParallel reduces"
        loss = model(torch.ones(1, 2)).sum()
        arm_reducer(parallel, [loss])
        loss.backward()
        assert reduced == [2], (
            "Reducer.prepare_for_backward does not arm the reducer: stage 0 would train on each "
            "rank's own gradients"
        )

    def test_collectives_are_identified(self) -> None:
        sent: list[tuple[str, Any]] = []
        with _seen(sent):
            _ = torch.ones(1) + 1
            dist.all_reduce(torch.ones(1))
            dist.broadcast(torch.ones(1), 0)
            all_gather_flat(torch.zeros(1), torch.ones(1))
            dist.barrier()
        names = [COLLECTIVES.get(name, name) for name, _ in sent]
        assert names == ["all_reduce", "broadcast", "all_gather_into_tensor", "barrier"], (
            "the dispatcher has other names for collectives: comms_logger would not name them"
        )


class TestDryRuns:
    def test_fake_tensors_have_shapes_only(self) -> None:
        with fake_tensors():
            product = torch.ones(2, 3) @ torch.ones(3, 4)
        assert is_fake(product)
        assert product.shape == (2, 4)
        assert not is_fake(torch.ones(1))

    def test_item_runs_one_operator(self) -> None:
        from dsengine.simulation.fakes import OperationObserver

        with fake_tensors(), OperationObserver():
            assert torch.ones(1).sum().item() == 0.5, (
                "item() runs another operator than _local_scalar_dense: dry runs would fail"
            )

    def test_fake_group_reports_other_backend(self) -> None:
        real, has_cuda = dist.get_backend, torch.cuda.is_available
        with fake_process_group(1, 64, "gloo"):
            assert (dist.get_rank(), dist.get_world_size()) == (1, 64)
            assert dist.get_backend() == "gloo"
            assert not torch.cuda.is_available()
            full = torch.zeros(64)
            all_gather_flat(full, torch.ones(1))
            with fake_tensors():
                start_gathers([(torch.zeros(64), torch.ones(1))], all_ranks()).wait()
        assert (dist.get_backend, torch.cuda.is_available) == (real, has_cuda)
        assert not dist.is_initialized()


class _RecordingUnpickler(pickle.Unpickler):
    """An unpickler that records the globals of a pickle."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.names: set[tuple[str, str]] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.names.add((module, name))
        return super().find_class(module, name)


class TestFiles:
    def test_tensor_file_uses_known_globals(self) -> None:
        file = io.BytesIO()
        torch.save(
            {
                "plain": torch.ones(2),
                "weight": nn.Parameter(torch.ones(2)),
                "size": torch.Size((1,)),
                "layout": torch.strided,
                "device": torch.device("cpu"),
            },
            file,
        )
        archive = zipfile.ZipFile(file)
        member = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        names = {
            tuple(str(argument).split(" "))
            for code, argument, _ in pickletools.genops(archive.read(member))
            if code.name == "GLOBAL"
        }
        known = {*named_in_tensor_files()}
        known |= {("collections", "OrderedDict"), ("torch", "FloatStorage")}
        assert ("torch._utils", "_rebuild_tensor_v2") in names
        assert names <= known, (
            f"torch.save now uses {names - known}: DeepSpeed files written with this torch would "
            "be refused"
        )

    def test_layout_is_restricted_to_layouts(self) -> None:
        rebuild = named_in_tensor_files()["torch.serialization", "_get_layout"]
        assert rebuild("torch.strided") is torch.strided
        for name in ("torch.save", "torch.load", "torch.os", "torch.hub"):
            with pytest.raises(pickle.UnpicklingError):
                rebuild(name)

    def test_layout_cannot_reach_code(self, tmp_path: Path) -> None:
        """A pickle that calls ``_get_layout("torch.os")``."""
        from dsengine.checkpoints import CheckpointError
        from dsengine.checkpoints.deepspeed_layout.files import read_file
        from dsengine.checkpoints.storage import SafeFileSystemReader

        class Malicious:
            def __reduce__(self) -> Any:
                return torch.serialization._get_layout, ("torch.os",)

        torch.save({"innocent": Malicious()}, tmp_path / "states.pt")
        (tmp_path / ".metadata").write_bytes(pickle.dumps(Malicious()))
        with pytest.raises(CheckpointError):
            read_file(tmp_path / "states.pt")
        with pytest.raises(CheckpointError):
            SafeFileSystemReader(tmp_path).read_metadata()

    @pytest.mark.usefixtures("alone")
    def test_checkpoint_metadata_uses_known_globals(self, tmp_path: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_saver import save

        save({"weight": torch.ones(2), "note": io.BytesIO(b"x")}, checkpoint_id=tmp_path)
        reader = FileSystemReader(tmp_path)
        path = Path(metadata_path(reader, None))
        assert path == tmp_path / ".metadata", "FileSystemReader._get_metadata_path has changed"
        unpickler = _RecordingUnpickler(io.BytesIO(path.read_bytes()))
        unpickler.load()
        unknown = {
            (module, name)
            for module, name in unpickler.names - set(named_in_checkpoint_metadata())
            if module not in ("torch", "pathlib", "pathlib._local")
        }
        assert unknown == set(), (
            f"torch.distributed.checkpoint now writes {unknown} into its metadata: checkpoints "
            "saved with this torch would be refused"
        )
