# SPDX-License-Identifier: Apache-2.0
"""All models of transformers with attn_implementation="attn", beside eager attention and sdpa.

    git clone --depth 1 --branch v5.22.2 https://github.com/huggingface/transformers
    python python/tests/sweep_transformers.py transformers [REGEX] [--json FILE]

Tiny random models in float32 with the configurations and inputs of transformers' own tests, of
about the installed version: one forward pass without padding, with left and with right padding;
8 generated tokens; the gradients of all parameters. Half an hour on a core for all models.

A line for each class, `same` where all that was compared is as eager; `sdpa` where it is as sdpa
and not as eager (rows that see no key, mostly); `-` where the model makes no call of ours. Exit
code 1 if something differs from both, or raises where one of them does not.
"""

import argparse
import collections
import copy
import importlib
import importlib.machinery
import json
import os
import random
import re
import signal
import sys
import types
import unittest
import warnings
from pathlib import Path
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")

import numpy as np  # noqa: E402
import torch  # noqa: E402

import attn.transformers  # noqa: E402

TOLERANCE = {"forward": 2e-5, "generate": 1e-3, "train": 2e-4}  # of the largest element
WAYS = "eager", "sdpa", "attn"
SECONDS = 120
MORE = re.compile(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel|ForMaskedLM)$")
NOT_GENERATED = {"labels", "decoder_input_ids", "decoder_attention_mask", "use_cache"}


# ---- transformers' tests -----------------------------------------------------------------------


class Missing(types.ModuleType):
    """A package that a test imports and these calls do not need."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__, self.__spec__ = [], importlib.machinery.ModuleSpec(name, None)
        if name == "parameterized":
            self.parameterized = types.SimpleNamespace(expand=lambda *_, **__: lambda f: f)
            self.parameterized_class = lambda *_, **__: lambda f: f

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)


def load(name):
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name.startswith(("tests", "transformers")) or error.name in sys.modules:
                raise
            parts = error.name.split(".")
            for i in range(len(parts)):
                missing = ".".join(parts[:i + 1])
                sys.modules.setdefault(missing, Missing(missing))
        except ImportError as error:  # a name that another version has
            found = re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
            if not found or hasattr(sys.modules.get(found[2]), found[1]):
                raise
            setattr(sys.modules[found[2]], found[1], mock.MagicMock(name=found[1]))


def cases(module):
    """class, config and inputs."""
    for kind in vars(module).values():
        if not (isinstance(kind, type) and issubclass(kind, unittest.TestCase)
                and kind.__module__ == module.__name__ and hasattr(kind, "all_model_classes")):
            continue
        test = kind(next((name for name in dir(kind) if name.startswith("test_")), "setUp"))
        test.setUp()
        if not hasattr(test, "model_tester"):
            continue
        seed()
        config, inputs = test.model_tester.prepare_config_and_inputs_for_common()[:2]
        classes = list(test.all_model_classes or ())
        for model in classes[:1] + [c for c in classes[1:] if MORE.search(c.__name__)][:2]:
            yield model, config, test._prepare_for_class(copy.deepcopy(inputs), model)


# ---- one class ---------------------------------------------------------------------------------


def seed():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def ready(model):
    """Weights large enough that attention matters; random sinks and position biases."""
    for name, x in model.float().named_parameters():
        with torch.no_grad():
            if "sinks" in name or "relative" in name:
                x.normal_()
            elif x.dim() >= 2 and x.numel() and 0 < x.std() < 0.08:
                x.mul_(0.08 / x.std())
    return model.eval()


def build(kind, config):
    """By way; None where the model refuses it. Loaded, not switched: users do that."""
    models = {}
    for way in WAYS:
        seed()
        try:
            models[way] = ready(kind._from_config(copy.deepcopy(config), attn_implementation=way))
        except (ValueError, KeyError, ImportError) as error:
            models[way] = error
    if isinstance(models["eager"], Exception):
        raise models["eager"]
    for way in WAYS[1:]:
        if not isinstance(models[way], Exception):
            models[way].load_state_dict(models["eager"].state_dict(), strict=False)
    return models


def paddings(inputs):
    inputs = {name: torch.ones_like(x) if name == "decoder_attention_mask" and x is not None else x
              for name, x in inputs.items()}
    ids, exist = (inputs.get(name) for name in ("input_ids", "attention_mask"))
    if not (isinstance(ids, torch.Tensor) and isinstance(exist, torch.Tensor)
            and ids.shape == exist.shape and ids.shape[1] >= 4):
        return {"plain": inputs}
    found, third = {}, ids.shape[1] // 3
    for side, hidden in (("plain", slice(0)), ("left", slice(third)),
                         ("right", slice(-third, None))):
        exist = torch.ones_like(exist)
        exist[0, hidden] = 0
        found[side] = {**inputs, "attention_mask": exist}
    return found


def tensors(x, path=""):
    """Of an output, by path, without caches and attention weights."""
    if isinstance(x, torch.Tensor):
        return {path: x} if x.is_floating_point() and x.numel() else {}
    if isinstance(x, (list, tuple)):
        x = dict(enumerate(x))
    return {key: value for name, part in (x.items() if isinstance(x, dict) else ())
            if not re.search("past_key|cache|attentions", str(name))
            for key, value in tensors(part, f"{path}.{name}").items()}


def forward(model, inputs):
    return tensors(dict(model(**inputs)))


def generate(model, inputs):
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    inputs = {name: x for name, x in inputs.items() if name not in NOT_GENERATED}
    found = model.generate(**inputs, max_new_tokens=8, min_new_tokens=8, do_sample=False,
                           num_beams=1, output_logits=True, return_dict_in_generate=True)
    return dict(enumerate(found.logits))


def train(model, inputs):
    model.zero_grad()
    loss = 0.0
    for _, x in sorted(forward(model, inputs).items()):
        weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
        weights = masked(weights, inputs.get("attention_mask"))
        if x.requires_grad:
            loss = loss + (x.nan_to_num(0, 0, 0).clamp(-1e6, 1e6) * weights).sum()
    loss.backward()
    found = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    least = 1e-2 * max(float(x.abs().max()) for x in found.values() if x.numel())
    return {name: (x, least) for name, x in found.items()}


def masked(x, exist):
    """0 where there is padding: those rows may be anything."""
    if isinstance(exist, torch.Tensor) and exist.dim() == 2 and x.shape[:2] == exist.shape:
        return x * exist.reshape(*exist.shape, *(1 for _ in x.shape[2:]))
    return x


def difference(found, expected, exist):
    if found.keys() != expected.keys():
        return float("inf")
    worst = 0.0
    for name, x in found.items():
        (x, least), (y, _) = (each if isinstance(each, tuple) else (each, 1e-3)
                              for each in (x, expected[name]))
        if x.shape != y.shape or not torch.equal(x.isfinite(), y.isfinite()):
            return float("inf")
        x, y = (masked(each.double().nan_to_num(0, 0, 0), exist) for each in (x, y))
        if x.numel():
            worst = max(worst, float((x - y).abs().max() / max(float(y.abs().max()), least)))
    return worst


def compare(work, models, inputs):
    """`same`, `sdpa`, `-` or what is wrong; None: nothing to compare with."""
    results, seen = {}, None
    for way, model in models.items():
        seed()
        seen = attn.transformers.register()
        try:
            with torch.set_grad_enabled(work is train):
                results[way] = work(model, copy.deepcopy(inputs))
        except Exception as error:  # of any kind: it is the result
            results[way] = error
    others = [way for way in WAYS[:2] if isinstance(results.get(way), dict)]
    if not others:
        return None
    if isinstance(results["attn"], Exception):
        return f"raises {type(results['attn']).__name__}: {str(results['attn'])[:120]}"
    exist = None if work is train else inputs.get("attention_mask")
    apart = {way: difference(results["attn"], results[way], exist) for way in others}
    if seen.by_pytorch:
        return f"by PyTorch: {', '.join(seen.reasons)}"
    if min(apart.values()) > TOLERANCE[work.__name__]:
        return "differs by " + ", ".join(f"{x:.1e} from {way}" for way, x in apart.items())
    if apart.get("eager", 1.0) > TOLERANCE[work.__name__]:
        return "sdpa"
    return "same" if seen.calls else "-"


def examine(kind, config, inputs):
    attn.transformers.register()
    models = build(kind, config)
    if isinstance(models["attn"], Exception):
        return {"load": f"refused: {models['attn']}".split("\n")[0][:100]}
    models = {way: model for way, model in models.items() if not isinstance(model, Exception)}
    found, padded = {}, paddings(inputs)
    for side, given in padded.items():
        found[f"forward {side}"] = compare(forward, models, given)
    if models["attn"].can_generate():
        for side in padded.keys() - {"right"}:
            found[f"generate {side}"] = compare(generate, models, padded[side])
    found["train"] = compare(train, models, padded.get("left", padded["plain"]))
    return found


# ---- all of them -------------------------------------------------------------------------------


def child(name, write):
    try:
        for kind, config, inputs in cases(load(name)):
            try:
                write(kind.__name__, examine(kind, config, inputs))
            except Exception as error:
                write(kind.__name__, {"load": f"not built: {error}".split("\n")[0][:100]})
    except Exception as error:
        write("", {"load": f"no inputs: {error}".split("\n")[0][:100]})


def verdict(found):
    if "load" in found:
        return found["load"].split(":")[0]
    results = {x for x in found.values() if x is not None}
    wrong = [x for x in results if x not in ("same", "sdpa", "-")]
    return wrong[0].split()[0] if wrong else "sdpa" if "sdpa" in results else \
        "same" if "same" in results else "-" if results else "nothing to compare"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("regex", nargs="?", default="")
    parser.add_argument("--json", type=Path, help="a line for each class")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.path.insert(0, str(options.checkout.resolve()))
    load("tests.test_modeling_common")
    lines = options.json or Path(os.devnull)
    counts, read, write = collections.Counter(), *os.pipe()
    for path in sorted(options.checkout.glob("tests/models/*/test_modeling_*.py")):
        if not re.search(options.regex, path.parent.name):
            continue
        process = os.fork()  # a model that crashes or hangs ends alone
        if process == 0:
            signal.alarm(SECONDS)
            os.close(read)
            with os.fdopen(write, "w", buffering=1) as pipe:
                child(".".join(path.relative_to(options.checkout).with_suffix("").parts),
                      lambda kind, found: print(json.dumps([kind, found]), file=pipe))
            os._exit(0)
        _, status = os.waitpid(process, 0)
        os.set_blocking(read, False)
        try:
            results = [json.loads(line) for line in os.read(read, 1 << 20).decode().splitlines()]
        except BlockingIOError:
            results = []
        results += [["", {"load": f"ended: by signal {status}"}]] if status else []
        for kind, found in results:
            counts[verdict(found)] += 1
            with lines.open("a") as file:
                print(json.dumps([path.parent.name, kind, found]), file=file)
            print(f"{path.parent.name:24} {kind:40} {verdict(found):10}",
                  *(f"{name}: {x}" for name, x in found.items() if x not in ("same", "-", None)))
            sys.stdout.flush()
    print(", ".join(f"{n} {word}" for word, n in counts.most_common()))
    return any(counts[word] for word in ("differs", "raises", "by", "ended"))


if __name__ == "__main__":
    sys.exit(main())
