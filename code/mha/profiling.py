"""What a call does besides computing: which attention kernel runs, and how much memory it needs."""

import math
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def device_of(inputs: Sequence[Tensor]) -> torch.device:
    """Return the device that all inputs are on.

    Raises
    ------
    TypeError
        If one is no tensor.
    ValueError
        If there is none, or they are on several devices.
    """
    for place, tensor in enumerate(inputs):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"inputs[{place}]: expected a torch.Tensor, got {type(tensor).__name__}"
            )
    devices = {tensor.device for tensor in inputs}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices))) or "no tensor"
        raise ValueError(f"inputs: expected tensors on one device, got {names}")
    return devices.pop()


class _Watcher(TorchDispatchMode):
    """Sees every operator of a call, those inside composed ones too (in inference mode PyTorch leaves them whole)."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        with self:
            result = function.decompose(*arguments, **options)
        if result is NotImplemented:  # it is not composed
            result = self.watch(function, arguments, options)
        return result


class _Kernels(_Watcher):
    """Notes which of PyTorch's fused attention kernels run."""

    NAMES = ("flash", "efficient", "cudnn", "native")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def watch(self, function, arguments, options):
        name = function.overloadpacket.__name__
        if "attention" in name:
            self.found += [kernel for kernel in self.NAMES if kernel in name]
        return function(*arguments, **options)


def attention_backend(function: Callable[..., object], *inputs: Tensor) -> str:
    """Return which attention kernel a function runs.

    Parameters
    ----------
    function : callable
        Called once, without gradients.
    *inputs : Tensor
        What it is called with.

    Returns
    -------
    str
        ``"flash"``, ``"efficient"`` or ``"cudnn"``, fused kernels that keep no query × key table; ``"native"``, the
        whole of ``nn.MultiheadAttention`` in one operator; or ``"math"``, none of them. A compiled function is not
        looked into: the answer is that of the function as it was written.
    """
    with _Kernels() as noted, torch.no_grad():
        function(*inputs)
    return noted.found[0] if noted.found else "math"


class _Live(_Watcher):
    """Adds up the bytes of the tensors that a call makes, as long as they live."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()
        self.notes: list[weakref.finalize] = []
        self.now = self.peak = 0

    def watch(self, function, arguments, options):
        # What is not among the tensors made here was there before.
        for tensor in tree_leaves((arguments, options)):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        result = function(*arguments, **options)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _see(self, storage: torch.UntypedStorage) -> bool:
        """Remember a storage as long as it lives, and tell whether it is a new one."""
        place = storage._cdata
        if place in self.seen:
            return False
        self.seen.add(place)
        self.notes.append(weakref.finalize(storage, self.seen.discard, place))
        return True

    def _count(self, storage: torch.UntypedStorage) -> None:
        if not self._see(storage):
            return
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        self.notes.append(weakref.finalize(storage, self._release, storage.nbytes()))

    def _release(self, size: int) -> None:
        self.now -= size


def peak_memory(function: Callable[..., object], *inputs: Tensor) -> int:
    """Return how many bytes a call needs at its worst moment, beyond what was there before it.

    On a CUDA device PyTorch's allocator is asked. Elsewhere the tensors are counted that PyTorch's operators return;
    what a kernel uses inside for a moment, tensors made from Python's numbers and tensors that are resized are not
    among them.

    Parameters
    ----------
    function : callable
        Called once, without gradients unless it enables them itself.
    *inputs : Tensor
        What it is called with. At least one.
    """
    device = device_of(inputs)
    with torch.no_grad():
        if device.type != "cuda":
            live = _Live()
            try:
                with live:
                    function(*inputs)
            finally:
                for note in live.notes:  # parameters live on
                    note.detach()
            return live.peak
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        function(*inputs)
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before


class _Work(_Watcher):
    """Counts the operators that compute something, and the bytes that they read and write; a view does neither."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.moved = 0

    def watch(self, function, arguments, options):
        result = function(*arguments, **options)
        if not _is_view(function):
            self.operators += 1
            for tensor in tree_leaves((arguments, options, result)):
                if isinstance(tensor, Tensor):
                    self.moved += _bytes_of(tensor)
        return result


def _is_view(function: torch._ops.OpOverload) -> bool:
    """Tell whether an operator only gives its input's numbers another shape."""
    # After a product PyTorch takes _unsafe_view, which it does not call a view.
    unnamed = function is torch.ops.aten._unsafe_view.default
    return function.is_view or unnamed or torch.Tag.inplace_view in function.tags


def _bytes_of(tensor: Tensor) -> int:
    """Return how many bytes hold a tensor's numbers: along an axis that is broadcast, they are the same ones."""
    if tensor.numel() == 0:
        return 0
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, step in axes if step) * tensor.element_size()


def _work(function: Callable[..., object], inputs: Sequence[Tensor]) -> _Work:
    with torch.no_grad(), _Work() as work:
        function(*inputs)
    return work


def operator_count(function: Callable[..., object], *inputs: Tensor) -> int:
    """Return how many of PyTorch's operators a call runs, views left out: on a GPU, each launches a kernel or more.

    Parameters
    ----------
    function : callable
        Called once, without gradients unless it enables them itself.
    *inputs : Tensor
        What it is called with.
    """
    return _work(function, inputs).operators


def bytes_moved(function: Callable[..., object], *inputs: Tensor) -> int:
    """Return how many bytes the operators of a call read and write, if each has to fetch what it needs.

    It is what memory must deliver where nothing stays in a cache from one operator to the next. What happens inside
    a fused kernel is not counted, only what goes in and what comes out. A tensor that is written to (as by ``copy_``
    or ``out=``) counts as read, too, and a table of which rows are picked counts as a whole.

    Parameters
    ----------
    function : callable
        Called once, without gradients unless it enables them itself.
    *inputs : Tensor
        What it is called with.
    """
    return _work(function, inputs).moved
