# SPDX-License-Identifier: Apache-2.0
"""Whole models with random weights: python -m attn.peers --models.

The layers have the sizes of real models, but there are few of them and small vocabularies. A row is
one model and one kind of work: a forward pass, one of a padded batch, or generating tokens with a
cache; by eager attention, by sdpa, by sdpa within replace_sdpa(), and attn_implementation="attn".
--compile has the same of a few works under torch.compile, as one graph.

Invariant: every side's result is compared with the first one's before it is timed, and the samples
of all sides are taken in turns (of compiled works one side after the other: a change would compile
again). A side that did not run has a reason; one that PyTorch computed in part has no ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import math
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .machine import DTYPES, Machine, NotRun, first_line
from .model_rows import OURS, is_wrong, put_ratios, row_text, summary, summary_lines, title, wrong
from .progress import Progress, clock

SCHEMA = "attn-models/1"
SIDES = ("eager", "sdpa", "replace_sdpa", "attn")
ROUNDS, SECONDS = 9, 6.0  # of a row; one sample of each side is taken in any case
VOCABULARY = 8192
COMPILED = ("compiled prefill", "compiled generate")
Work = Callable[[Any], Any]  # of a model: what it computes, as rows of floats or as tokens


class Loaded(NamedTuple):
    model: Any
    works: Dict[str, Tuple[str, Work]]  # with the sizes in words
    sides: Tuple[str, ...] = SIDES
    compiled: Dict[str, Callable[[Any], Any]] = {}  # works under torch.compile: by which context


class Sizes:
    """Of a run: real ones, or such that a CPU is done in moments."""

    def __init__(self, torch: Any, device: Any, tiny: bool) -> None:
        self.torch, self.device, self.tiny = torch, device, tiny
        self.layers = 2 if tiny else 4
        self.new_tokens = 6 if tiny else 128
        self.batch = 2 if tiny else 8
        self.backend = "eager" if tiny else "inductor"  # of torch.compile

    def __call__(self, real: int, tiny: int) -> int:
        return tiny if self.tiny else real

    def tokens(self, batch: int, length: int) -> Any:
        return self.torch.randint(2, 100, (batch, length), device=self.device)

    def padding(self, batch: int, length: int, left: bool) -> Any:
        """Which tokens exist: from a quarter of the length up to all of it."""
        torch = self.torch
        lengths = torch.linspace(length // 4, length, batch, dtype=torch.float32,
                                 device=self.device).long()[:, None]
        places = torch.arange(length, device=self.device)
        return (places >= length - lengths if left else places < lengths).long()


# ---- models ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _one_graph(model: Any, torch: Any, backend: str) -> Iterator[None]:
    """Its forward pass compiled: a graph break is an error."""
    model.forward = torch.compile(model.forward, fullgraph=True, backend=backend)
    try:
        yield
    finally:
        del model.forward


def _static(sizes: Sizes, model: Any, length: int) -> Callable[[], Dict[str, Any]]:
    """A static cache, of which generate() compiles the step (on the CPU it is asked to). The same
    at each call: the graph has its addresses."""
    made: Dict[str, Any] = {}

    def arguments() -> Dict[str, Any]:
        import transformers
        if not made:
            how = transformers.CompileConfig(fullgraph=True, backend=sizes.backend,
                                             mode=None if sizes.tiny else "reduce-overhead")
            how._compile_all_devices = True
            made.update(compile_config=how, past_key_values=transformers.StaticCache(
                config=model.config, max_cache_len=length))
        made["past_key_values"].reset()
        return made
    return arguments


def _decoder(kind: str, sizes: Sizes, hidden: int, inner: int, heads: int, heads_kv: int, dim: int,
             **special: Any) -> Loaded:
    import transformers
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=sizes(VOCABULARY, 128), hidden_size=sizes(hidden, 64),
        intermediate_size=sizes(inner, 96), num_hidden_layers=sizes.layers,
        num_attention_heads=sizes(heads, 4), num_key_value_heads=sizes(heads_kv, 2),
        head_dim=sizes(dim, 16), pad_token_id=0, eos_token_id=None, bos_token_id=1, **special)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    length, prompt = sizes(8192, 24), sizes(1024, 20)
    one, many = sizes.tokens(1, length), sizes.tokens(sizes.batch, prompt)
    exist = sizes.padding(sizes.batch, prompt, True)
    named = {"max_new_tokens": sizes.new_tokens, "do_sample": False, "use_cache": True}
    batch, after = sizes.batch, f"S{prompt} + {sizes.new_tokens}"
    prefill = f"B1 S{length}", lambda m: m(one, use_cache=False).logits
    static = _static(sizes, model, prompt + sizes.new_tokens)
    return Loaded(model, {
        "prefill": prefill, "compiled prefill": prefill,
        "compiled generate": (f"B1 {after}", lambda m: m.generate(
            many[:1], **named, **static())),
        "padded": (f"B{batch} S{prompt}", lambda m: m(
            many, attention_mask=exist, use_cache=False).logits[exist.bool()]),
        "generate": (f"B1 {after}", lambda m: m.generate(many[:1], **named)),
        "generate padded": (f"B{batch} {after}", lambda m: m.generate(
            many, attention_mask=exist, **named))},
        compiled={"compiled prefill": lambda m: _one_graph(m, sizes.torch, sizes.backend),
                  "compiled generate": contextlib.nullcontext})


def _llama(sizes: Sizes) -> Loaded:
    return _decoder("Llama", sizes, 4096, 14336, 32, 8, 128)


def _gemma2(sizes: Sizes) -> Loaded:
    return _decoder("Gemma2", sizes, 3584, 14336, 16, 8, 256, sliding_window=sizes(4096, 8),
                    query_pre_attn_scalar=sizes(256, 16))


def _gpt_oss(sizes: Sizes) -> Loaded:
    """Two experts, both used: a choice of them would turn rounding into another result."""
    loaded = _decoder("GptOss", sizes, 2880, 720, 64, 8, 64, sliding_window=sizes(128, 8),
                      num_local_experts=2, num_experts_per_tok=2)
    for name, parameter in loaded.model.named_parameters():
        if name.endswith("sinks"):
            sizes.torch.nn.init.normal_(parameter)
    return loaded


def _t5(sizes: Sizes) -> Loaded:
    import transformers
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=sizes(VOCABULARY, 128), d_model=sizes(1024, 64), d_kv=sizes(64, 16),
        d_ff=sizes(4096, 96), num_layers=sizes.layers, num_heads=sizes(16, 4),
        decoder_start_token_id=0))
    length = sizes(1024, 24)
    source, target = sizes.tokens(sizes.batch, length), sizes.tokens(sizes.batch, length // 4)
    exist = sizes.padding(sizes.batch, length, False)
    named = {"max_new_tokens": sizes.new_tokens, "do_sample": False, "eos_token_id": None}
    words, after = f"B{sizes.batch} S{length}", f"S{length}, {sizes.new_tokens}"
    return Loaded(model, {
        "forward": (words, lambda m: m(input_ids=source, decoder_input_ids=target).logits),
        "padded": (words, lambda m: m(
            input_ids=source, attention_mask=exist, decoder_input_ids=target).logits),
        "generate": (f"B1 {after}", lambda m: m.generate(input_ids=source[:1], **named)),
        "generate padded": (f"B{sizes.batch} {after}", lambda m: m.generate(
            input_ids=source, attention_mask=exist, **named))})


def _bert(sizes: Sizes) -> Loaded:
    import transformers
    model = transformers.BertModel(transformers.BertConfig(
        vocab_size=sizes(VOCABULARY, 128), hidden_size=sizes(1024, 64),
        intermediate_size=sizes(4096, 96), num_hidden_layers=sizes.layers,
        num_attention_heads=sizes(16, 4)))
    batch, length = sizes(16, 3), sizes(512, 24)
    text, exist = sizes.tokens(batch, length), sizes.padding(batch, length, False)
    return Loaded(model, {
        "forward": (f"B{batch} S{length}", lambda m: m(text).last_hidden_state),
        "padded": (f"B{batch} S{length}", lambda m: m(
            text, attention_mask=exist).last_hidden_state[exist.bool()])})


def _whisper(sizes: Sizes) -> Loaded:
    import transformers
    width, heads, inner, frames = sizes(1280, 64), sizes(20, 4), sizes(5120, 96), sizes(1500, 50)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        vocab_size=sizes(VOCABULARY, 128), d_model=width, encoder_layers=sizes.layers,
        decoder_layers=sizes.layers, encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=inner, decoder_ffn_dim=inner, num_mel_bins=sizes(128, 8),
        max_source_positions=frames, max_target_positions=448, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None))
    sound = sizes.torch.randn(sizes.batch, sizes(128, 8), 2 * frames, device=sizes.device)
    text = sizes.tokens(sizes.batch, sizes(256, 12))
    generate = transformers.GenerationMixin.generate  # Whisper's own cuts sound into pieces
    named = {"max_new_tokens": sizes.new_tokens, "do_sample": False, "eos_token_id": None}
    return Loaded(model, {
        "forward": (f"B{sizes.batch} S{frames}", lambda m: m(
            input_features=sound, decoder_input_ids=text).logits),
        "generate": (f"B1 S{frames}, {sizes.new_tokens}", lambda m: generate(
            m, input_features=sound[:1], **named)),
        "generate batch": (f"B{sizes.batch} S{frames}, {sizes.new_tokens}", lambda m: generate(
            m, input_features=sound, **named))})


def _siglip(sizes: Sizes) -> Loaded:
    import transformers
    side = sizes(378, 48)
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(
        hidden_size=sizes(1152, 72), intermediate_size=sizes(4304, 96),
        num_hidden_layers=sizes.layers, num_attention_heads=sizes(16, 4), image_size=side,
        patch_size=sizes(14, 8)))
    images = sizes.torch.randn(sizes.batch, 3, side, side, device=sizes.device)
    return Loaded(model, {"forward": (f"B{sizes.batch} S{sizes(729, 36)}",
                                      lambda m: m(images).last_hidden_state)})


def _dit(sizes: Sizes) -> Loaded:
    """Blocks of a diffusion transformer in plain PyTorch: attention is F's function alone."""
    torch = sizes.torch
    nn, heads, dim, length = torch.nn, sizes(24, 4), sizes(128, 16), sizes(4608, 48)
    width = heads * dim

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                     nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.one(x)).view(*x.shape[:2], 3, heads, dim).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            return x + self.mlp(self.two(x))

    model = nn.Sequential(*(Block() for _ in range(sizes.layers)))
    x = torch.randn(1, length, width, device=sizes.device)
    return Loaded(model, {"forward": (f"B1 S{length}", lambda m: m(x))}, ("sdpa", "replace_sdpa"))


TEXT = ("prefill", "padded", "generate", "generate padded")
MODELS: Dict[str, Tuple[Callable[[Sizes], Loaded], Tuple[str, ...]]] = {
    "Llama 8B": (_llama, TEXT), "Gemma 2 9B": (_gemma2, TEXT), "gpt-oss 20B": (_gpt_oss, TEXT),
    "T5 large": (_t5, ("forward", "padded", "generate", "generate padded")),
    "BERT large": (_bert, ("forward", "padded")),
    "Whisper large": (_whisper, ("forward", "generate", "generate batch")),
    "SigLIP so400m": (_siglip, ("forward",)), "DiT": (_dit, ("forward",))}


# ---- one row ---------------------------------------------------------------------------------


def set_attention(model: Any, name: str) -> None:
    """Of all parts: transformers leaves out an encoder or decoder with a copy of the model's
    configuration, as T5 has them."""
    for part in model.modules():
        if hasattr(part, "set_attn_implementation"):
            part.set_attn_implementation(name)
            if part.config._attn_implementation != name:
                raise NotRun(f"the model does not take attn_implementation={name!r}")


@contextlib.contextmanager
def attention_by(side: str, model: Any) -> Iterator[Any]:
    """Gives what the side counts, if it does."""
    import attn.torch
    seen: Any = None
    if side == "attn":
        import attn.transformers
        seen = attn.transformers.register()
    set_attention(model, "sdpa" if side == "replace_sdpa" else side)
    if side == "replace_sdpa":
        with attn.torch.replace_sdpa(fallback=True) as seen:
            yield seen
    else:
        yield seen


def differ(found: Any, expected: Any) -> Tuple[Optional[float], Optional[float]]:
    """Rows of floats: the largest distance over the row's length. Tokens: how many are the same
    up to the first that is not; one tie makes the rest another text."""
    if not found.is_floating_point():
        same = (found == expected).long().cumprod(-1).float().mean().item()
        return None, round(same, 4)
    right = expected.float()
    distance = (found.float() - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(1e-6)
    worst = distance.max().item()
    return worst if math.isfinite(worst) else sys.float_info.max, None  # JSON has no infinity


def new_side(name: str) -> Dict[str, Any]:
    return {"name": name, "reason": None, "samples_ms": [], "median_ms": None, "difference": None,
            "same_tokens": None, "calls": None, "by_pytorch": None, "reasons": {}, "kernels": [],
            "ratio": None, "worst_call": None}


def sample(machine: Machine, model: Any, work: Work) -> Tuple[Any, float]:
    machine.synchronize()
    start = time.perf_counter()
    found = work(model)
    machine.synchronize()
    return found, round(1e3 * (time.perf_counter() - start), 4)


def first_run(machine: Machine, loaded: Loaded, work: Work, side: Dict[str, Any],
              expected: Any) -> Any:
    """Warms the side up, compares its result, and notes the kernels. Gives the result."""
    from attn import _plans
    known, _plans.calls = _plans.calls, {}
    try:
        found, _ = sample(machine, loaded.model, work)
        side["kernels"] = sorted({plan.variant for plan, *_ in list(_plans.calls.values())})
    finally:
        _plans.calls = {**known, **_plans.calls}
    side["difference"], side["same_tokens"] = differ(found, found if expected is None else expected)
    return found


def counted(side: Dict[str, Any], seen: Any, compiled: bool) -> None:
    """Calls inside a compiled graph are not: there the kernels show that it was ours."""
    if seen is None:
        return
    side["calls"], side["by_pytorch"] = seen.calls, seen.by_pytorch
    side["reasons"] = dict(seen.reasons)
    if not seen.calls and not (compiled and side["kernels"]):
        raise NotRun("no attention of the model came through here")


def worst_call(machine: Machine, loaded: Loaded, work: Work, name: str) -> str:
    """Of a side with a wrong result: the call that differs most from PyTorch's for the same
    inputs. If none does, the fault is one of order: each call is waited for here."""
    import attn.transformers as ours_there
    functional, calls, worst = machine.torch.nn.functional, 0, (0.0, "none")
    original = functional.scaled_dot_product_attention

    def checked(compute: Callable[..., Any], by_pytorch: Callable[..., Any], *tensors: Any,
                **named: Any) -> Any:
        nonlocal calls, worst
        found, expected = compute(*tensors, **named), by_pytorch(*tensors, **named)
        calls += 1
        first, second = (x[0] if isinstance(x, tuple) else x for x in (found, expected))
        far = differ(first, second)[0] or 0.0
        if far > worst[0]:
            sizes = [tuple(x.shape) for x in tensors if hasattr(x, "shape")]
            worst = far, f"call {calls} by {far:.3g}, of the sizes {sizes}"
        return found

    def refused(*tensors: Any, **named: Any) -> Any:
        asked, fast = ours_there._refusal, ours_there.forward
        ours_there._refusal = lambda *_: "to be compared"
        ours_there.forward = lambda *_: None
        try:
            return ours_there.attention_forward(*tensors, **named)
        finally:
            ours_there._refusal, ours_there.forward = asked, fast

    with attention_by(name, loaded.model):
        if name == "attn":
            from transformers import AttentionInterface
            AttentionInterface.register("attn", functools.partial(
                checked, ours_there.attention_forward, refused))
        else:
            functional.scaled_dot_product_attention = functools.partial(
                checked, functional.scaled_dot_product_attention, original)
        sample(machine, loaded.model, work)
    return worst[1]


def measure_row(machine: Machine, loaded: Loaded, name: str, seconds: float,
                row: Dict[str, Any]) -> None:
    (row["sizes"], work), compiled = loaded.works[name], name in loaded.compiled
    context = loaded.compiled.get(name, contextlib.nullcontext)
    started, expected = time.perf_counter(), None
    for side in row["sides"]:
        if compiled:
            machine.torch._dynamo.reset()
        try:
            with attention_by(side["name"], loaded.model) as seen, context(loaded.model):
                found = first_run(machine, loaded, work, side, expected)
                expected = found if expected is None else expected
                counted(side, seen, compiled)
                begun = time.perf_counter()
                while compiled and len(side["samples_ms"]) < ROUNDS and (
                        time.perf_counter() - begun < seconds / len(row["sides"])):
                    side["samples_ms"].append(sample(machine, loaded.model, work)[1])
        except Exception as error:  # a refusal, memory: the side says it
            side["reason"] = first_line(error)
            machine.recover(error)
    running = [side for side in row["sides"] if side["reason"] is None]
    for turn in range(0 if compiled else ROUNDS):
        if turn and time.perf_counter() - started > seconds:
            break
        for side in running if turn % 2 else running[::-1]:
            with attention_by(side["name"], loaded.model):
                side["samples_ms"].append(sample(machine, loaded.model, work)[1])
    for side in running:
        side["median_ms"] = round(statistics.median(side["samples_ms"]), 4)
    put_ratios(row)
    row["seconds"] = round(time.perf_counter() - started, 2)


# ---- all rows --------------------------------------------------------------------------------


def load(machine: Machine, name: str, sizes: Sizes, dtype: Any) -> Loaded:
    torch, before = machine.torch, machine.torch.get_default_dtype()
    torch.manual_seed(machine.seed)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(machine.device):
            loaded = MODELS[name][0](sizes)
    finally:
        torch.set_default_dtype(before)
    loaded.model.eval()
    return loaded


def new_row(model: str, work: str, reason: Optional[str] = None) -> Dict[str, Any]:
    return {"model": model, "work": work, "sizes": None, "reason": reason, "sides": [],
            "seconds": 0.0}


def wanted(options: argparse.Namespace) -> Dict[str, List[str]]:
    """The works of each model that --only has."""
    table = {"Llama 8B": COMPILED} if options.compile else {
        name: works for name, (_, works) in MODELS.items()}
    found = {name: [work for work in works if re.search(options.only or "", f"{name}, {work}")]
             for name, works in table.items()}
    return {name: works for name, works in found.items() if works}


def rows_of(machine: Machine, options: argparse.Namespace, dtype: str,
            progress: Progress) -> Iterator[Dict[str, Any]]:
    sizes, longest = Sizes(machine.torch, machine.device, options.tiny), 0.0

    def late() -> Optional[str]:
        over = options.limit and progress.elapsed() + longest > options.limit
        return f"the limit of {clock(options.limit)} was reached" if over else None

    for name, works in wanted(options).items():
        progress.begin(name)
        reason, loaded = late(), None
        try:
            if reason is None:
                loaded = load(machine, name, sizes, getattr(machine.torch, DTYPES[dtype][0]))
        except Exception as error:  # no transformers, no such model there, no memory
            reason = first_line(error)
            machine.recover(error)
        for work in works:
            row = new_row(name, work, reason or late())
            if loaded is not None and row["reason"] is None:
                row["sides"] = [new_side(side) for side in loaded.sides]
                measure_row(machine, loaded, work, options.seconds or SECONDS, row)
                for side in row["sides"]:
                    if side["name"] in OURS and is_wrong(side, dtype):
                        side["worst_call"] = worst_call(machine, loaded, loaded.works[work][1],
                                                        side["name"])
                longest = max(longest, row["seconds"])
            yield row
        del loaded
        gc.collect()
        if machine.gpu:
            machine.torch.cuda.empty_cache()


def quiet() -> None:
    """transformers' remarks on random models; attn's own warnings become reasons of a row."""
    import warnings
    warnings.filterwarnings("ignore", message="attn.transformers")
    with contextlib.suppress(ImportError):
        import transformers
        transformers.logging.set_verbosity_error()


def save(report: Dict[str, Any], path: Optional[str]) -> None:
    if path and path != "-":
        Path(path).write_text(json.dumps(report) + "\n")


def run_models(machine: Machine, options: argparse.Namespace) -> int:
    """Exit code 1 if a result differs, or with --check one of our sides is below its bar or not
    ours; 3 if nothing was measured."""
    if not machine.gpu and not options.tiny:
        raise NotRun("models of real sizes need a GPU; --tiny has small ones")
    dtype = (options.dtype or ["bf16" if machine.gpu else "fp32"])[0]
    report: Dict[str, Any] = {"schema": SCHEMA, "environment": machine.environment(),
                              "dtype": dtype, "tiny": options.tiny, "complete": False, "rows": []}
    quiet()
    with contextlib.suppress(ImportError):
        import transformers
        report["environment"]["transformers"] = transformers.__version__
    progress = Progress(sum(len(works) for works in wanted(options).values()))
    with machine.torch.inference_mode():
        for row in rows_of(machine, options, dtype, progress):
            report["rows"].append(row)
            progress.step(title(row), row_text(row))
            save(report, options.json)
    progress.close()
    report["complete"], report["summary"] = True, summary(report["rows"])
    save(report, options.json)
    if options.json == "-":
        print(json.dumps(report))
    else:
        print(", ".join(f"{key} {value}" for key, value in report["environment"].items()))
        for row in report["rows"]:
            print(f"{title(row)}: {row_text(row)}")
        print(*summary_lines(report["summary"]), sep="\n")
    failed = [line for row in report["rows"] for line in wrong(row, dtype)]
    for line in failed:
        print(f"peers: --models: {line}", file=sys.stderr)
    if failed or (options.check and (report["summary"]["below"] or report["summary"]["not_ours"])):
        return 1
    return 0 if any(side["median_ms"] for row in report["rows"] for side in row["sides"]) else 3
