"""What ``dsengine.torch_private`` needs to hold of the installed torch, in words where it does not.

In one process: a group of one rank over gloo, or torch's own fake group of two.
"""

import copy
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
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from dsengine import torch_private as private

pytestmark = pytest.mark.torch


@contextmanager
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def alone() -> Iterator[None]:
    with one_rank():
        yield


class Tied(nn.Module):
    """Two layers that share a weight, and a buffer that no state dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("kept", torch.ones(1))
        self.register_buffer("passing", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).sum()


def unit_of(model: nn.Module, **policy: Any) -> FSDPModule:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return fully_shard(model, mesh=mesh, reshard_after_forward=True, **policy)


@pytest.mark.usefixtures("alone")
class TestUnits:
    def test_fully_shard_can_be_taken_off(self) -> None:
        model = Tied()
        before = private.hooks_below(model)
        unit_of(model)(torch.ones(1, 4)).backward()
        added = private.hooks_below(model) - before
        private.remove_fully_shard(model, added)
        assert type(model) is Tied and private.hooks_below(model) == before, (
            "fully_shard leaves something on a module that its tables of hooks do not show: a "
            "second initialize of a model would train with what is left of the first"
        )
        model.first.weight = model.second.weight = nn.Parameter(torch.ones(4, 4))
        unit_of(model)  # would refuse a module that it still has

    def test_a_unit_knows_its_parameters_and_all_their_owners(self) -> None:
        model = Tied()
        (parameter,) = private.sharded_parameters(unit_of(model))
        assert parameter.owners == [(model.first, "weight"), (model.second, "weight")], (
            "FSDPParam._module_info no longer lists every module that shares a parameter: tied "
            "weights would be saved and gathered once too often"
        )
        assert parameter.owner is model.first
        assert isinstance(parameter.shard, DTensor), "FSDPParam.sharded_param is no DTensor now"
        assert model.first.weight is parameter.shard, (
            "the module does not hold FSDPParam.sharded_param between uses"
        )
        assert (parameter.rank, parameter.ranks, parameter.is_on_host) == (0, 1, False)
        assert not parameter.was_gathered, "FSDPParam makes the whole parameter before a gather"

    def test_a_module_that_is_no_unit_has_none(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        unit_of(model[0])
        assert private.units_of(model) == [model[0]]
        outer = unit_of(model)
        assert private.units_of(model) == [model, model[0]]
        assert len(list(private.sharded_parameters(outer))) == 2, (
            "a unit yields parameters of the units below it"
        )

    def test_modules_that_share_a_unit_give_each_parameter_once(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        mesh = init_device_mesh("cpu", (1,))
        fully_shard(list(model), mesh=mesh)
        assert len(private.sharded_parameters_of(private.units_of(model))) == 4

    def test_the_flat_memory_is_that_of_the_shard_and_of_the_whole(self) -> None:
        unit = unit_of(Tied())
        (parameter,) = private.sharded_parameters(unit)
        local = private.local_part(parameter.shard)
        assert parameter.flat_shard.data_ptr() == local.data_ptr(), (
            "FSDPParam._sharded_param_data is not the memory of the shard: offload to NVMe and "
            "shards inside whole parameters would train a copy"
        )
        unit.unshard()
        assert private.is_gathered(unit)
        assert parameter.was_gathered
        assert parameter.unsharded.data_ptr() == parameter.flat_unsharded.data_ptr(), (
            "FSDPParam.all_gather_outputs[0] is not the memory of the whole parameter: stages 1 "
            "and 2 would compute with the weights of the first step"
        )
        unit.reshard()
        assert not private.is_gathered(unit)
        assert parameter.flat_unsharded.untyped_storage().nbytes() == 0, (
            "resharding does not empty the storage of the gather any more: memory is held"
        )

    def test_a_shard_can_rest_elsewhere(self) -> None:
        unit = unit_of(Tied())
        (parameter,) = private.sharded_parameters(unit)
        shard, place = parameter.shard, parameter.flat_shard.clone()
        parameter.use_memory(place)
        place.fill_(2.0)
        unit.unshard()
        assert parameter.shard is shard
        assert parameter.unsharded.eq(2.0).all(), (
            "a gather does not read FSDPParam._sharded_param_data any more: parameters on NVMe, "
            "or inside whole ones, would not be what is gathered"
        )

    def test_a_shard_can_be_replaced_before_the_first_gather(self) -> None:
        model = Tied()
        unit = unit_of(model)
        (parameter,) = private.sharded_parameters(unit)
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

    def test_modules_can_show_another_parameter(self) -> None:
        model = Tied()
        unit = unit_of(model)
        (parameter,) = private.sharded_parameters(unit)
        shard, shown = parameter.shard, nn.Parameter(torch.zeros(2))
        seen: list[bool] = []
        parameter.set_view(shown)
        assert model.first.weight is model.second.weight is parameter.view is shown
        cast(Any, unit)(torch.ones(1, 4)).backward()
        assert shard.grad is not None and model.first.weight is shown, (
            "FSDPParam._setattr_on_modules is not how a module gets its shards back"
        )
        model.load_state_dict({}, strict=False)
        assert parameter.shard is shard and model.first.weight is shown, (
            "FSDPParam.reset_sharded_param is not what reads a shard back from a module"
        )
        parameter.set_view(shown, lambda _, found: seen.append(found is shown))
        model.load_state_dict({"first.weight": torch.ones(2)}, strict=False, assign=True)
        assert not all(seen) and model.second.weight is shown and parameter.shard is shard, (
            "FSDPParam.reset_sharded_param is not what reads a shard back from a module"
        )
        parameter.set_view(shard)
        assert model.first.weight is parameter.view is shard

    def test_a_whole_parameter_can_be_kept(self) -> None:
        unit = unit_of(Tied())
        unit.unshard()
        (parameter,) = private.sharded_parameters(unit)
        parameter.keep_unsharded()
        unit.reshard()
        assert parameter.flat_unsharded.untyped_storage().nbytes(), (
            "resharding frees by another way than FSDPParam.free_unsharded_param: shards that "
            "rest inside whole parameters would be freed with them"
        )

    def test_late_gradients_are_seen_and_reduced(self) -> None:
        unit = unit_of(Tied())
        cast(Any, unit)(torch.ones(1, 4)).backward()
        (parameter,) = private.sharded_parameters(unit)
        once = private.local_part(cast(Tensor, parameter.shard.grad)).clone()
        assert not parameter.has_late_gradient
        unit.unshard()
        parameter.unsharded.grad = torch.ones_like(parameter.unsharded)
        assert parameter.has_late_gradient, (
            "FSDPParam._unsharded_param is not where late gradients arrive: what a forward read "
            "directly would lose them"
        )
        assert [each.sum().item() for each in parameter.unreduced()] == [16.0]
        private.reduce_late_gradients(unit)
        again = private.local_part(cast(Tensor, parameter.shard.grad))
        assert torch.equal(again, once + 1.0), (
            "FSDPParamGroup.post_backward does not add what came in late"
        )
        assert not list(parameter.unreduced())
        cast(Any, unit)(torch.ones(1, 4)).backward()  # its state is that of a unit at rest

    def test_sums_that_wait_for_the_boundary_are_seen(self) -> None:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        unit = unit_of(Tied(), mp_policy=policy)
        unit.set_requires_gradient_sync(False)
        cast(Any, unit)(torch.ones(1, 4)).backward()
        (parameter,) = private.sharded_parameters(unit)
        assert [each.dtype for each in parameter.unreduced()] == [torch.float32], (
            "FSDPParam.unsharded_accumulated_grad is not where a window is summed: offload_states "
            "would leave it on the device"
        )

    def test_state_dicts_can_be_plain(self) -> None:
        model = Tied()
        unit = unit_of(model)
        unit.unshard()
        private.remove_state_dict_hooks(unit)
        values = model.state_dict()
        assert not isinstance(values["first.weight"], DTensor), (
            "the hooks by which fully_shard puts shards into a state dict are other ones now: "
            "below stage 3 a state dict would be one of shards"
        )
        model.load_state_dict({name: torch.zeros_like(value) for name, value in values.items()})
        (parameter,) = private.sharded_parameters(unit)
        assert private.is_gathered(unit)
        assert parameter.unsharded.eq(0.0).all()

    def test_a_model_that_is_whole_can_be_copied(self) -> None:
        model = Tied()
        unit = unit_of(model)
        unit.unshard()
        private.make_copyable(model)
        copied = copy.deepcopy(model)
        assert type(copied) is Tied, "fully_shard marks a module's class in another way"
        assert copied.first.weight is copied.second.weight
        assert not isinstance(copied.first.weight, DTensor)
        left = [
            key
            for key in copied.__dict__
            if key not in Tied().__dict__ or (key.endswith("_hooks") and copied.__dict__[key])
        ]
        assert left == [], f"fully_shard marks a module in new ways, which copies inherit: {left}"
        copied(torch.ones(1, 4)).backward()
        with torch.no_grad():
            copied.first.weight.zero_()
        assert not model.first.weight.eq(0.0).all()

    def test_gathers_can_be_asked_to_run_beside_the_computation(self) -> None:
        unit = unit_of(Tied())
        private.unshard_asynchronously(unit)
        cast(Any, unit)(torch.ones(1, 4)).backward()


def test_units_reshard_within_the_group_of_another() -> None:
    with private.fake_process_group(0, 4, "gloo"):
        mesh = init_device_mesh("cpu", (4,))
        units = [
            fully_shard(nn.Linear(8, 8), mesh=mesh, reshard_after_forward=fewer)
            for fewer in (2, True)
        ]
        known = private.reshard_within(units[0])
        assert known.shard_mesh_size == 2, "FSDPParamGroup.post_forward_mesh_info is another thing"
        assert private.reshard_within(units[1], known) is known
        assert private.reshard_within(units[1]).shard_mesh_size == 2


@pytest.mark.usefixtures("alone")
class TestShards:
    def test_a_shard_is_made_in_the_same_memory(self) -> None:
        mesh = init_device_mesh("cpu", (1,))
        like = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
        part = torch.ones(4, 2, dtype=torch.bfloat16)
        shard = private.as_shard(part, like)
        assert shard.placements == like.placements
        assert shard.dtype is torch.bfloat16
        assert private.local_part(shard).data_ptr() == part.data_ptr(), (
            "DTensor(local, spec) copies: the optimizer below the device would step a copy"
        )

    def test_the_part_is_the_very_tensor(self) -> None:
        mesh = init_device_mesh("cpu", (1,))
        shard = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
        before = private.version_of(private.local_part(shard))
        private.local_part(shard).add_(1.0)
        assert private.version_of(private.local_part(shard)) == before + 1
        plain = torch.zeros(1)
        assert private.local_part(plain) is plain

    def test_a_refresh_of_what_is_whole_is_not_a_write_to_the_shard_inside(self) -> None:
        whole = torch.zeros(4)
        shard, before = whole[:2], private.version_of(whole)
        with private.preserve_versions([whole]):
            whole.add_(1.0)
        assert private.version_of(shard) == before, (
            "masters on the host would be taken from 16-bit shards after every step"
        )


def test_hooks_on_a_step_run_once_around_many() -> None:
    optimizer, said = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), list[str]()
    optimizer.register_step_pre_hook(lambda *_: said.append("before"))
    optimizer.register_step_post_hook(lambda *_: said.append("after"))

    def many() -> None:
        for _ in range(2):
            optimizer.step()
            said.append("step")

    private.step_hooks_once(optimizer, many)
    assert said == ["before", "step", "step", "after"], "a step's hooks are kept elsewhere"
    optimizer.step()
    assert said[4:] == ["before", "after"], "hooks on a step are lost"


def test_a_rank_knows_its_place_in_the_whole() -> None:
    with private.fake_process_group(1, 2, "gloo"):
        mesh = init_device_mesh("cpu", (2,))
        shard = DTensor.from_local(torch.zeros(2, 3), mesh, [Shard(0)], shape=torch.Size((5, 3)),
                                   stride=(3, 1))  # fmt: skip
        assert private.shard_slices(shard) == (slice(3, 5), slice(0, 3)), (
            "compute_local_shape_and_global_offset does not divide as fully_shard does: weights "
            "would be read into wrong rows"
        )


class TestModulesAndTensors:
    def test_a_module_is_told_when_it_is_cast(self) -> None:
        seen: list[str] = []

        class Told(private.MoveAwareModule):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(2, 2)

            @contextmanager
            def moving_tensors(self) -> Iterator[None]:
                seen.append(str(self.inner.weight.dtype))
                yield
                seen.append(str(self.inner.weight.dtype))

        told = Told().half()
        assert seen == ["torch.float32", "torch.float16"], "Module.half no longer runs _apply"
        assert told.inner.weight.dtype is torch.float16

    def test_tensors_of_torch_func_are_known(self) -> None:
        seen: list[bool] = []

        def square(x: torch.Tensor) -> torch.Tensor:
            seen.append(private.is_functorch_tensor(x))
            return (x * x).sum()

        plain = torch.ones(2, requires_grad=True)
        torch.func.grad(square)(plain)
        assert seen == [True] and not private.is_functorch_tensor(plain), (
            "_functorch.is_functorch_wrapped_tensor is another thing: derivatives by torch.func "
            "through an engine would be divided by the accumulation steps"
        )

    def test_buffers_of_the_state_dict(self) -> None:
        assert [name for name, _ in private.persistent_buffers(Tied())] == ["kept"], (
            "Module._non_persistent_buffers_set is another thing: checkpoints would change"
        )

    def test_wrappers_add_a_known_element_to_names(self) -> None:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        from dsengine.parameters.names import clean_name

        wrapped = (torch.compile(nn.Linear(1, 1)), checkpoint_wrapper(nn.Linear(1, 1)))
        for module in wrapped:
            assert [clean_name(name) for name, _ in cast(nn.Module, module).named_parameters()] == [
                "weight",
                "bias",
            ], "a wrapper of torch names its content otherwise: checkpoints would not fit"

    def test_children_come_under_each_name(self) -> None:
        layer = nn.Linear(1, 1)
        assert [n for n, _ in private.children_of(nn.Sequential(layer, layer))] == ["0", "1"]

    def test_reads_of_a_parameter_pass_by_the_table(self) -> None:
        class Table(dict[str, Any]):
            def __getitem__(self, name: str) -> Any:
                read.append(name)
                return super().__getitem__(name)

        read: list[str] = []
        layer = nn.Linear(2, 2)
        private.replace_parameter_table(layer, Table(private.parameter_table(layer)))
        layer(torch.ones(1, 2))
        assert sorted(set(read)) == ["bias", "weight"], (
            "Module.__getattr__ does not look parameters up in Module._parameters: a weight that "
            "a forward reads directly would not be gathered at stage 3"
        )

    def test_storages_are_known_by_key(self) -> None:
        tensor = torch.zeros(4)
        assert private.storage_key(tensor) == private.storage_key(tensor[1:])
        assert private.storage_key(tensor) == private.storage_key(tensor.untyped_storage())
        assert private.storage_key(tensor) != private.storage_key(tensor.clone())

    def test_resizes_are_seen(self) -> None:
        seen: list[tuple[int, int]] = []
        tensor = torch.zeros(4)
        with private.observe_resizes(
            lambda storage, before: seen.append((before, storage.nbytes()))
        ):
            tensor.untyped_storage().resize_(0)
        tensor.untyped_storage().resize_(16)
        assert seen == [(16, 0)]

    def test_a_callback_runs_when_a_backward_is_over(self) -> None:
        order: list[str] = []
        weight = torch.ones(1, requires_grad=True)
        weight.register_post_accumulate_grad_hook(lambda _: order.append("gradient"))
        product = weight * 2
        product.register_hook(lambda _: private.at_end_of_backward(lambda: order.append("end")))
        product.backward()
        assert order == ["gradient", "end"], (
            "callbacks queued in a backward run before its gradients are complete"
        )

    def test_a_subclass_meets_plain_operations(self) -> None:
        class Loud(Tensor):
            @classmethod
            def __torch_function__(
                cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                called.append(func)
                with private.plain_tensors():
                    return func(*args, **(kwargs or {}))

        called: list[Any] = []
        loud = torch.ones(2).as_subclass(Loud)
        _ = loud + 1
        copied = len(called)
        with private.plain_tensors(), torch.device("meta"):
            _ = loud + 1
            assert torch.empty(1).is_meta, "plain_tensors turns a default device off"
        assert (copied, len(called)) == (1, 1)

    def test_what_copies_ask_for_is_known(self) -> None:
        class Asked(Tensor):
            @classmethod
            def __torch_function__(
                cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                asked.append(func)
                return super().__torch_function__(func, types, args, kwargs or {})

        asked: list[Any] = []
        _ = torch.ones(1).as_subclass(Asked)._backward_hooks
        assert private.backward_hooks_of in asked

    def test_multi_tensor_operations(self) -> None:
        tensors = [torch.tensor([3.0, 4.0]), torch.tensor([1.0])]
        assert [n.item() for n in private.foreach_norm(tensors)] == [5.0, 1.0]
        private.foreach_mul_(tensors, 2.0)
        private.foreach_copy_(tensors[1:], [torch.tensor([7.0], dtype=torch.float64)])
        assert [t.tolist() for t in tensors] == [[6.0, 8.0], [7.0]]
        (halfway,) = private.foreach_lerp([torch.zeros(1)], [torch.ones(1)], 0.5)
        assert halfway.item() == 0.5
        private.foreach_lerp_([halfway], [torch.ones(1)], 0.5)
        assert halfway.item() == 0.75
        private.foreach_step_by_sign_([halfway], [torch.tensor([-3.0])], 0.25)
        assert halfway.item() == 0.5


@pytest.mark.usefixtures("alone")
class TestGroups:
    def test_a_group_knows_its_devices(self) -> None:
        assert private.supports_device(None, "cpu")
        assert not private.supports_device(None, "meta")
        assert private.supports_device(dist.new_group([0]), "cpu")

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads are not asked")
    def test_the_threads_of_gloo_have_their_name(self) -> None:
        """Without it a process may end in SIGABRT once in some thousand runs."""
        names = [each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")]
        assert private.GLOO_THREAD in names

    def test_the_store_of_the_group(self) -> None:
        private.default_store().set("dsengine/contract", "held")
        assert private.default_store().get("dsengine/contract") == b"held"

    def test_many_tensors_are_broadcast(self) -> None:
        tensors = [torch.ones(2), torch.zeros(3, dtype=torch.bfloat16)]
        private.broadcast_coalesced(tensors, 1024)
        assert tensors[0].eq(1.0).all()

    def test_one_rank_gathers_its_own(self) -> None:
        whole = torch.zeros(2)
        private.all_gather_flat(whole, torch.ones(2))
        assert whole.eq(1.0).all()

    def test_groups_without_an_accelerator_are_passed_over(self) -> None:
        private.abort_communicators()

    def test_the_reducer_can_be_armed_between_forward_and_backward(self) -> None:
        model = nn.Linear(2, 1, bias=False)
        parallel = DistributedDataParallel(model, init_sync=False)
        reduced: list[int] = []

        def count(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            reduced.append(bucket.buffer().numel())
            future = torch.futures.Future[Tensor]()
            future.set_result(bucket.buffer())
            return future

        parallel.register_comm_hook(None, count)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        assert reduced == [], "a backward without a forward of DistributedDataParallel reduces"
        loss = model(torch.ones(1, 2)).sum()
        private.arm_reducer(parallel, loss)
        loss.backward()
        assert reduced == [2], (
            "Reducer.prepare_for_backward does not arm the reducer: stage 0 would train on each "
            "rank's own gradients"
        )

    def test_collectives_are_told_from_other_operations(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Seen(TorchDispatchMode):
            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if (name := private.collective_of(func)) is not None:
                    names.append(private.COLLECTIVES.get(name, name))
                return func(*args, **(kwargs or {}))

        names: list[str] = []
        with Seen():
            _ = torch.ones(1) + 1
            dist.all_reduce(torch.ones(1))
            dist.broadcast(torch.ones(1), 0)
            private.all_gather_flat(torch.zeros(1), torch.ones(1))
            dist.barrier()
        assert names == ["all_reduce", "broadcast", "all_gather_into_tensor", "barrier"], (
            "the dispatcher names collectives otherwise: comms_logger would count them unnamed"
        )


class TestDryRuns:
    def test_fake_tensors_have_shapes_only(self) -> None:
        with private.fake_tensors():
            product = torch.ones(2, 3) @ torch.ones(3, 4)
        assert private.is_fake(product)
        assert product.shape == (2, 4)
        assert not private.is_fake(torch.ones(1))

    def test_a_read_of_a_value_is_one_operation(self) -> None:
        from dsengine.simulation.fakes import OperationObserver

        with private.fake_tensors(), OperationObserver():
            assert torch.ones(1).sum().item() == 0.5, (
                "item() runs another operation than _local_scalar_dense: dry runs would stop"
            )

    def test_the_fake_group_is_taken_for_another(self) -> None:
        real, has_cuda = dist.get_backend, torch.cuda.is_available
        with private.fake_process_group(1, 64, "gloo"):
            assert (dist.get_rank(), dist.get_world_size()) == (1, 64)
            assert dist.get_backend() == "gloo"
            assert not torch.cuda.is_available()
            whole = torch.zeros(64)
            private.all_gather_flat(whole, torch.ones(1))
        assert (dist.get_backend, torch.cuda.is_available) == (real, has_cuda)
        assert not dist.is_initialized()


class _Noting(pickle.Unpickler):
    """Notes what a pickle names, and builds it."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.names: set[tuple[str, str]] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.names.add((module, name))
        return super().find_class(module, name)


class TestFiles:
    def test_a_tensor_file_names_what_is_known(self) -> None:
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
        known = {*private.named_in_tensor_files()}
        known |= {("collections", "OrderedDict"), ("torch", "FloatStorage")}
        assert ("torch._utils", "_rebuild_tensor_v2") in names
        assert names <= known, (
            f"torch.save names {names - known} now: files of DeepSpeed written with this torch "
            "would be refused"
        )

    def test_a_layout_is_what_torch_writes(self) -> None:
        rebuild = private.named_in_tensor_files()["torch.serialization", "_get_layout"]
        assert rebuild("torch.strided") is torch.strided
        for name in ("torch.save", "torch.load", "torch.os", "torch.hub"):
            with pytest.raises(pickle.UnpicklingError):
                rebuild(name)

    def test_no_file_reaches_code_by_way_of_a_layout(self, tmp_path: Path) -> None:
        """A pickle that asks for ``_get_layout("torch.os")`` and goes on from there."""
        from dsengine.checkpoints import CheckpointError
        from dsengine.checkpoints.deepspeed_layout.pickles import read_file
        from dsengine.checkpoints.metadata_reader import SafeFileSystemReader

        class Asking:
            def __reduce__(self) -> Any:
                return torch.serialization._get_layout, ("torch.os",)

        torch.save({"innocent": Asking()}, tmp_path / "states.pt")
        (tmp_path / ".metadata").write_bytes(pickle.dumps(Asking()))
        with pytest.raises(CheckpointError):
            read_file(tmp_path / "states.pt")
        with pytest.raises(CheckpointError):
            SafeFileSystemReader(tmp_path).read_metadata()

    @pytest.mark.usefixtures("alone")
    def test_a_checkpoint_names_what_is_known(self, tmp_path: Path) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save({"weight": torch.ones(2), "note": io.BytesIO(b"x")}, checkpoint_id=tmp_path)
        reader = dcp.FileSystemReader(tmp_path)
        place = Path(private.metadata_path(reader, None))
        assert place == tmp_path / ".metadata", "FileSystemReader._get_metadata_path has moved"
        noting = _Noting(io.BytesIO(place.read_bytes()))
        noting.load()
        unknown = {
            (module, name)
            for module, name in noting.names - set(private.named_in_checkpoint_metadata())
            if module not in ("torch", "pathlib", "pathlib._local")
        }
        assert unknown == set(), (
            f"torch.distributed.checkpoint writes {unknown} into its metadata now: checkpoints "
            "saved with this torch would be refused"
        )
