"""The optimizers' table against torch's own optimizers, run on real tensors under counting modes."""

import math
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from calibration.optimizers import OPTIMIZERS as BUILD
from simulator.techniques.optimizer import (
    OPTIMIZERS,
    dispatches,
    factor_elements,
    launches,
    moved_bytes,
    state_bytes,
    syncs,
    temporary_bytes,
)

BIG, SMALL = (256, 192), (128, 96)
NO_DEVICE_WORK = ("lift_fresh", "_local_scalar_dense", "profiler")


def tensors_in(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Watch(TorchDispatchMode):
    """Counts dispatched operations, bytes touched by those on more than a scalar, and the peak of new live bytes."""

    def __init__(self, known):
        super().__init__()
        self.operations = self.kernels = self.moved = self.live = self.peak = 0
        self.seen = WeakIdKeyDictionary()
        for tensor in known:
            self.seen[tensor.untyped_storage()] = True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        inputs = {tensor.data_ptr(): tensor for tensor in tensors_in((args, kwargs)) if tensor.ndim}
        before = {key: tensor.clone() for key, tensor in inputs.items()}
        result = function(*args, **(kwargs or {}))
        name = str(function)
        if "profiler" in name:
            return result
        self.operations += 1
        new = [tensor for tensor in tensors_in(result) if tensor.data_ptr() not in inputs]
        named = {tensor.data_ptr() for tensor in tensors_in(args[:1])} if function._opname.endswith("_") else set()
        written = [tensor for key, tensor in inputs.items() if key in named or not torch.equal(tensor, before[key])]
        self.moved += sum(tensor.nbytes for tensor in [*inputs.values(), *written, *new] if tensor.ndim)
        self.track(new)
        on_device = bool(inputs) and not any(word in name for word in NO_DEVICE_WORK)
        self.kernels += on_device
        return result

    def track(self, new):
        for tensor in new:
            storage = tensor.untyped_storage()
            if storage not in self.seen:
                self.seen[storage] = True
                size = storage.nbytes() if tensor.ndim else 0
                self.live += size
                weakref.finalize(storage, self.free, size)
        self.peak = max(self.peak, self.live)

    def free(self, size):
        self.live -= size


def build(name, params):
    if name == "sgd":  # on a GPU torch takes lists by itself, on a CPU only when asked to
        return torch.optim.SGD(params, lr=1e-3, momentum=0.9, foreach=True)
    return BUILD[name](params)


def stepped(name, shapes, dtype=torch.float32):
    """An optimizer after two steps and the watch of a third."""
    torch.manual_seed(0)
    params = [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer = build(name, params)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    optimizer.step()
    state = [tensor for state in optimizer.state.values() for tensor in tensors_in(list(state.values()))]
    with Watch([*params, *(param.grad for param in params), *state]) as watch:
        optimizer.step()
    return optimizer, watch


def workload_of(make_workload, shapes, **changes):
    sizes = [math.prod(shape) for shape in shapes]
    return make_workload(
        params=sum(sizes), parameter_tensors=len(sizes), largest_parameter=max(sizes), embedding_params=0, **changes
    )


@pytest.fixture(params=OPTIMIZERS)
def name(request):
    return request.param


def test_the_worker_runs_the_same_optimizers():
    assert set(BUILD) == set(OPTIMIZERS)


@pytest.mark.parametrize(("dtype", "weight_bytes"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_state_bytes(name, make_workload, dtype, weight_bytes):
    shapes = [BIG, SMALL, (64,)]
    optimizer, _ = stepped(name, shapes, dtype)
    entries = [tensors_in(list(state.values())) for state in optimizer.state.values()]
    actual = sum(tensor.nbytes for tensors in entries for tensor in tensors if tensor.ndim)
    predicted = state_bytes(name, workload_of(make_workload, shapes), weight_bytes)
    if OPTIMIZERS[name].factored:
        assert actual <= predicted <= sum(math.prod(shape) for shape in shapes) * weight_bytes
    else:
        assert predicted == actual


def test_host_operations(name, make_workload):
    for count in (1, 4):
        shapes = [BIG] * count
        _, watch = stepped(name, shapes)
        assert watch.operations == dispatches(name, workload_of(make_workload, shapes))


def test_kernels_of_small_lists(name, make_workload):
    """With few small tensors each list pass is one launch, so launches are the operations that touch an array.

    Fused AdamW's counters live on the GPU, one launch more; on a CPU they are scalars that the watch leaves out.
    """
    shapes = [SMALL] * 3
    _, watch = stepped(name, shapes)
    counters = 1 if name == "adamw_fused" else 0
    assert launches(name, workload_of(make_workload, shapes)) == watch.kernels + counters


def test_bytes_moved(name, make_workload):
    shapes = [(1024, 768)] * 2
    _, watch = stepped(name, shapes)
    assert watch.moved == pytest.approx(moved_bytes(name, workload_of(make_workload, shapes), 4), rel=0.03)


def test_temporaries_with_the_largest_tensor_first(name, make_workload):
    shapes = [BIG, (8, 8), SMALL]
    _, watch = stepped(name, shapes)
    predicted = temporary_bytes(name, workload_of(make_workload, shapes), 4)
    assert watch.peak == pytest.approx(predicted, rel=0.02)


def test_temporaries_of_equal_tensors_hold_at_most_one_more(name, make_workload):
    shapes = [BIG] * 3
    _, watch = stepped(name, shapes)
    predicted = temporary_bytes(name, workload_of(make_workload, shapes), 4)
    assert predicted <= watch.peak * 1.001
    assert watch.peak <= (predicted + math.prod(BIG) * 4 * bool(OPTIMIZERS[name].temporary_largest)) * 1.02


def test_adafactor_waits_for_two_norms_a_tensor(make_workload):
    workload = workload_of(make_workload, [BIG] * 5)
    assert syncs("adafactor", workload) == 10
    assert syncs("adamw_fused", workload) == 0


def test_adafactor_on_vectors_stays_below_the_bound(make_workload):
    shapes = [(64,)] * 3
    _, watch = stepped("adafactor", shapes)
    assert watch.operations <= dispatches("adafactor", workload_of(make_workload, shapes))


def test_adafactor_factors_of_a_billion_parameters_are_bounded(make_workload):
    """GPT-NeoX at width 2048 and 16 layers, its factors counted tensor by tensor."""
    width, vocabulary, layers = 2048, 50304, 16
    matrices = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)] * layers
    matrices += [(vocabulary, width)] * 2
    vectors = [3 * width, width, 4 * width, width, width, width, width, width] * layers + [width] * 2
    actual = sum(rows + columns for rows, columns in matrices) + sum(vectors)
    params = sum(rows * columns for rows, columns in matrices) + sum(vectors)
    workload = make_workload(
        params=params,
        embedding_params=vocabulary * width,
        parameter_tensors=len(matrices) + len(vectors),
        largest_parameter=vocabulary * width,
        layers=layers,
    )
    assert actual <= factor_elements(workload) <= 0.02 * params


def test_large_lists_need_more_launches(make_workload):
    """A billion parameters are 15,259 chunks of 65,536, and 2,240 chunks fill a launch."""
    workload = make_workload(params=10**9, parameter_tensors=200)
    assert launches("adamw_fused", workload) == 2 * 7
    many = make_workload(params=10**6, parameter_tensors=1000)
    assert launches("adamw_fused", many) == math.ceil(1000 / 770) + math.ceil(1000 / 252)


def test_adamw_moves_28_bytes_a_parameter_and_keeps_8(make_workload):
    workload = make_workload(params=1000)
    assert moved_bytes("adamw_fused", workload, 4) == 28_000
    assert state_bytes("adamw_fused", workload, 4) == 8_000
    assert state_bytes("adamw_fused", workload, 2) == 4_000
    assert state_bytes("lion", workload, 4) == state_bytes("sgd", workload, 4) == 4_000
