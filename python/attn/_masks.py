# SPDX-License-Identifier: Apache-2.0
"""A mask of Hugging Face transformers as what it consists of: causal, window, padding, used keys.

transformers asks mask_function() for a mask once per forward pass and hands what comes back to all
layers. None hides nothing. A Structure is anything that the library has options for, also a mask
that is causal and no more: layers that do not know whether they are causal, or compute with the
mask themselves, are then right too. A pattern that is not recognised (chunks, packed sequences,
image blocks) is Dense: a tensor made by transformers.

Invariant: a Structure means what the dense tensor would have meant for every row. Code of a model
that computes with a mask gets the tensor that it adds to its scores under eager attention.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple, Union

import numpy as np
import torch
import torch.nn.functional
from torch.utils._pytree import tree_map_only

Tensor = torch.Tensor


class Mask:
    """What a layer computes with it, other than attention, it computes with additive()."""

    ndim = 4
    _added: Optional[Tensor] = None

    def __init__(self, shape: Tuple[int, int, int, int], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    def _boolean(self) -> Tensor:
        raise NotImplementedError

    def _moved(self, move: Callable[[Any], Any], device: torch.device) -> Mask:
        raise NotImplementedError

    def additive(self) -> Tensor:
        """As eager_mask of transformers: 0 is visible, the smallest number is not."""
        if self._added is None:
            seen = self._boolean()
            zero = torch.zeros((), dtype=self.dtype, device=seen.device)
            self._added = torch.where(seen, zero, torch.finfo(self.dtype).min).expand(self.shape)
        return self._added

    def to(self, *to: Any, **named: Any) -> Any:
        """On another device, as accelerate asks for it; of another dtype, additive()."""
        device = named.get("device", to[0] if to else None)
        if (len(to) > 1 or named.keys() - {"device", "non_blocking"}
                or not isinstance(device, (str, int, torch.device))):
            return self.additive().to(*to, **named)
        return self._moved(lambda x: x.to(*to, **named) if isinstance(x, Tensor) else x,
                           torch.device(device))

    def contiguous(self) -> Mask:
        """As generate() asks of a mask that it made."""
        return self

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (),
                           named: Any = None) -> Any:
        arguments, named = tree_map_only(Mask, Mask.additive, (arguments, named or {}))
        return function(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "structure" or not hasattr(torch.Tensor, name):
            raise AttributeError(name)
        return getattr(self.additive(), name)


_OPERATORS = ("add", "sub", "mul", "truediv", "eq", "ne", "lt", "le", "gt", "ge", "getitem")


def _operator(name: str, reflected: bool = False) -> Callable[..., Any]:
    function = getattr(operator, name)

    def method(self: Mask, other: Any) -> Any:
        mask = self.additive()
        return function(other, mask) if reflected else function(mask, other)
    return method


for _name in _OPERATORS:
    setattr(Mask, f"__{_name}__", _operator(_name))
for _name in _OPERATORS[:4]:
    setattr(Mask, f"__r{_name}__", _operator(_name, reflected=True))
setattr(Mask, "__hash__", object.__hash__)


class Dense(Mask):
    """tensor: boolean, True is visible."""

    def __init__(self, tensor: Tensor, dtype: torch.dtype) -> None:
        super().__init__(tuple(tensor.shape), dtype)
        self.tensor = tensor

    def __repr__(self) -> str:
        return f"<mask {self.shape}: dense>"

    def _boolean(self) -> Tensor:
        return self.tensor

    def _moved(self, move: Callable[[Any], Any], device: torch.device) -> Dense:
        return Dense(move(self.tensor), self.dtype)


class Structure(Mask):
    """Keys from `end` on are seen by no query. shift: query i has the position of key i + shift;
    reach: where that is a tensor, how many keys the last query sees, for each sequence. keys: which
    exist, (batch, end), where some do not. The same by numbers where that is possible: used_kv, how
    many from the first one on; or runs on the host, the first key of each sequence and how many
    follow."""

    def __init__(self, shape: Tuple[int, int, int, int], causal: Optional[str],
                 window: Tuple[int, int], shift: Union[int, Tensor], end: int,
                 reach: Optional[Tensor] = None, keys: Optional[Tensor] = None,
                 used_kv: Optional[Tensor] = None, runs: Optional[Tuple[Any, Any]] = None,
                 place: Optional[torch.device] = None,
                 dtype: torch.dtype = torch.float32) -> None:
        super().__init__(shape, dtype)
        self.causal, self.window, self.shift, self.end = causal, window, shift, end
        self.reach, self.keys, self.used_kv, self.runs = reach, keys, used_kv, runs
        self.place = place
        self.made: Dict[Tuple[int, ...], Any] = {}  # boundaries(), by the first layer that asks

    def __repr__(self) -> str:
        parts = [self.causal or "full"]
        parts += [f"window {self.window}"] if self.window != (-1, -1) else []
        parts += ["runs" if self.runs is not None else
                  "used_kv" if self.used_kv is not None else
                  "keys" if self.keys is not None else "all keys"]
        return f"<mask {self.shape}: {', '.join(parts)}>"

    def _boolean(self) -> Tensor:
        return self.dense(self.shape[2], self.shape[3], self.place)

    def _moved(self, move: Callable[[Any], Any], device: torch.device) -> Structure:
        return Structure(self.shape, self.causal, self.window, move(self.shift), self.end,
                         move(self.reach), move(self.keys), move(self.used_kv), self.runs, device,
                         self.dtype)

    def options(self) -> Tuple[Optional[str], Optional[Tensor], Optional[Tensor]]:
        """causal, mask and used_kv of a call that does not take runs."""
        if self.used_kv is not None:
            return self.causal, None, self.used_kv
        mask = None if self.keys is None else self.keys[:, None, None, :]
        return self.causal, mask, self.reach

    def boundaries(self, rows: int, step: int, total: int) -> Tuple[Tensor, ...]:
        """runs as cu_seqlens_q, cu_seqlens_kv and used_kv of keys that lie `step` rows apart: an
        empty sequence first, for cu_seqlens begins at 0 and the first key may not. One copy to the
        device for all layers."""
        key = (rows, step, total)
        if key not in self.made:
            starts, used = self.runs
            batch = len(starts)
            table = np.zeros((3, batch + 2), np.int32)
            table[0, 1:] = np.arange(batch + 1) * rows
            table[1, 1:-1], table[1, -1] = np.arange(batch) * step + starts, total
            table[2, 1:-1] = used
            cu_q, cu_kv, used_kv = torch.from_numpy(table).to(self.keys.device, non_blocking=True)
            self.made[key] = cu_q, cu_kv, used_kv[:-1]
        return self.made[key]

    @property
    def plain(self) -> bool:
        """Nothing but causal or full."""
        return self.keys is None and self.reach is None and self.window == (-1, -1)

    def dense(self, rows: int, keys: int, device: Optional[torch.device]) -> Tensor:
        """As a boolean tensor that broadcasts to (batch, heads, rows, keys)."""
        i = torch.arange(rows, device=device)[:, None] + self.shift
        j = torch.arange(keys, device=device)[None, :]
        left, right = self.window
        seen = torch.ones(rows, keys, dtype=torch.bool, device=device)
        if self.causal is not None:
            seen = seen & (j <= i)
        if left >= 0:
            seen = seen & (j >= i - left)
        if right >= 0:
            seen = seen & (j <= i + right)
        if keys > self.end:
            seen = seen & (j < self.end)
        if self.keys is None:
            return seen
        exist = torch.nn.functional.pad(self.keys, (0, keys - self.keys.shape[1]))
        return seen & exist[:, None, None, :]


# ---- which pattern -----------------------------------------------------------------------------


class _Pattern(NamedTuple):
    causal: bool
    left: int = -1
    right: int = -1


class _Transformers:
    """What is needed of transformers; learnt once, so that a traced graph imports nothing."""
    module = ""
    causal: Any = None
    full: Any = None
    dense: Any = None


_of = _Transformers()


def learn() -> None:
    from transformers import masking_utils
    _of.module, _of.causal = masking_utils.__name__, masking_utils.causal_mask_function
    _of.full = getattr(masking_utils, "bidirectional_mask_function", None)
    _of.dense = masking_utils.sdpa_mask


@functools.lru_cache(maxsize=64)
def _edges(name: str, size: int, overlay: Any) -> Optional[Tuple[int, int]]:
    """The window of an overlay, found by asking it: its edges have differed between versions."""
    middle = 2 * size + 2
    keys = torch.arange(2 * middle + 1)
    zero = torch.zeros((), dtype=torch.long)
    visible = overlay(zero, zero, torch.tensor(middle), keys)
    found = visible.nonzero().flatten().tolist()
    if not found or len(found) != found[-1] - found[0] + 1 or not found[0] <= middle <= found[-1]:
        return None
    return (-1 if found[0] == 0 else middle - found[0],
            -1 if found[-1] == 2 * middle else found[-1] - middle)


class _Overlay:
    """A function with the name and the size that say what it computes."""

    def __init__(self, function: Callable[..., Tensor], name: str, size: int) -> None:
        self.function, self.key = function, (name, size)

    def __call__(self, *indices: Tensor) -> Tensor:
        return self.function(*indices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Overlay) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _cell(function: Any, name: str) -> Any:
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def _pattern(function: Any) -> Optional[_Pattern]:
    """None: not one that is known."""
    if function is _of.causal:
        return _Pattern(True)
    if function is _of.full and _of.full is not None:
        return _Pattern(False)
    if torch.compiler.is_dynamo_compiling():  # which cannot look into closures
        return None
    if getattr(function, "__module__", None) != _of.module:
        return None
    name = function.__qualname__
    try:
        if name == "and_masks.<locals>.and_mask":
            parts = [_pattern(part) for part in _cell(function, "mask_functions")]
            if None in parts or not parts:
                return None
            lefts = [part.left for part in parts if part.left >= 0]
            rights = [part.right for part in parts if part.right >= 0]
            return _Pattern(any(part.causal for part in parts), min(lefts, default=-1),
                            min(rights, default=-1))
        if name in ("sliding_window_overlay.<locals>.inner_mask",
                    "sliding_window_bidirectional_overlay.<locals>.inner_mask"):
            size = _cell(function, "sliding_window")
            edges = _edges(name, size, _Overlay(function, name, size))
            return None if edges is None else _Pattern(False, *edges)
    except (AttributeError, ValueError, TypeError):  # written in another way
        pass
    return None


# ---- padding -----------------------------------------------------------------------------------


def _readable() -> bool:
    """Whether values may be looked at: not while a graph is traced or captured."""
    return not (torch.compiler.is_compiling() or torch.jit.is_tracing()
                or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()))


def _place_padding(mask: Structure, keys: Tensor, last: int) -> None:
    """Looks at which keys exist (batch, last), and finds the options for it: none of them if all
    do; runs where each sequence is one; used_kv where all begin at the first key; else the keys
    stay a mask."""
    exist = keys[:, :last].cpu().numpy()
    count = exist.sum(1)
    if (count == last).all():
        mask.keys = None
        return
    first, after = exist.argmax(1), last - exist[:, ::-1].argmax(1)
    empty, windowed = count == 0, mask.window != (-1, -1)
    if not ((after - first == count) | empty).all():
        return
    if mask.causal is not None and ((after == last) | empty).all():
        # The last query is the last key's: the diagonal of each sequence ends in its own corner.
        first = np.where(empty, last, first)
    elif (first == 0).all() and (
            isinstance(mask.shift, int) and mask.shift == 0 if mask.causal else not windowed):
        mask.causal = mask.causal and "top-left"
        mask.used_kv = torch.from_numpy(count.astype(np.int32)).to(keys.device, non_blocking=True)
        return
    elif mask.causal is not None or windowed:
        return
    mask.runs = first, count


# ---- the function that transformers calls ------------------------------------------------------

# Their layers append keys, and to a mask that is a torch.Tensor what is visible of these.
_LONGER = frozenset(("deepseek_v4",))


def _structure(pattern: _Pattern, batch: int, rows: int, length: int, shift: Union[int, Tensor],
               keys: Optional[Tensor], place: Optional[torch.device] = None,
               dtype: torch.dtype = torch.float32) -> Optional[Structure]:
    """shift: a tensor stays one, and so does what depends on it: a compiled graph serves all its
    values. None: a diagonal that the library does not have."""
    causal, left, right = pattern
    known = isinstance(shift, int)
    end = shift + rows if causal and known else length
    aligned = known and shift == length - rows
    if end > length or not (causal or aligned or (left < 0 and right < 0)):
        return None
    if known:
        left = -1 if left >= shift + rows - 1 else left
        right = -1 if right >= length - 1 - shift else right
    mask = Structure((batch, 1, rows, length), "bottom-right" if causal else None, (left, right),
                     shift, end, place=place, dtype=dtype)
    if causal and not known:
        mask.reach = (shift + rows).to(torch.int32).reshape(1).expand(batch).contiguous()
    if keys is not None:
        keys = keys[:, :end]
        missing = end - keys.shape[1]  # a pad of 0 would copy
        mask.keys = torch.nn.functional.pad(keys, (0, missing)) if missing else keys
        if _readable():
            last = end if known or not causal else int(shift) + rows
            _place_padding(mask, mask.keys, last)
    return mask


def mask_function(batch_size: int, q_length: Any = None, kv_length: int = 0, q_offset: Any = 0,
                  kv_offset: int = 0, mask_function: Any = None, attention_mask: Any = None,
                  allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
                  cache_position: Optional[Tensor] = None, **others: Any) -> Any:
    """As sdpa_mask of transformers; cache_position is what 4.x passes for q_length and q_offset."""
    if isinstance(attention_mask, Mask):  # made before, by generate()
        return attention_mask

    dtype = others.get("dtype", torch.float32)

    def dense() -> Tensor:
        place = {"q_length": q_length, "q_offset": q_offset} if cache_position is None else \
            {"cache_position": cache_position}
        return _of.dense(
            batch_size=batch_size, kv_length=kv_length, kv_offset=kv_offset,
            mask_function=mask_function, attention_mask=attention_mask,
            allow_is_causal_skip=False, allow_is_bidirectional_skip=False, **place, **others)

    if getattr(others.get("config"), "model_type", None) in _LONGER:
        return Dense(dense(), dtype).additive()
    pattern = _pattern(mask_function)
    rows = q_length if cache_position is None else cache_position.shape[0]
    if pattern is None:
        return dense() if rows == 1 else Dense(dense(), dtype)
    skip = allow_is_causal_skip if pattern.causal else allow_is_bidirectional_skip
    if not skip and (rows > 1 or not pattern.causal):  # the model will compute with it
        return Dense(dense(), dtype)
    shift = (q_offset if cache_position is None else cache_position[0]) - kv_offset
    if isinstance(shift, Tensor) and skip and _readable():
        shift = int(shift)
    keys = attention_mask
    if keys is not None and kv_offset:
        keys = keys[:, kv_offset:]
    near = keys if cache_position is None else cache_position
    place = others.get("device", None if near is None else near.device)
    mask = _structure(pattern, batch_size, rows, kv_length, shift, keys, place, dtype)
    if mask is None:
        return dense() if rows == 1 else Dense(dense(), dtype)
    if not skip:  # one row: the tensor is small, and who passes it on passes on its structure
        if torch.compiler.is_compiling():
            return dense().contiguous()
        # Additive: a model may compute with it. generate() asks for a contiguous one, and keeps the
        # object then.
        tensor = Dense(dense(), dtype).additive().contiguous()
        tensor.structure = mask
        return tensor
    if mask.plain and (not pattern.causal or (rows == 1 and mask.end == kv_length)):
        return None
    if mask.plain and isinstance(shift, int) and (shift == 0 or rows == 1):
        mask.causal = "top-left" if rows > 1 else None  # the same; what most calls ask for
    return mask
