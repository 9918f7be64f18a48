# SPDX-License-Identifier: Apache-2.0
"""Compares and times models of ONNX Runtime with its own attention and with libattn's.

    cc -O2 -shared -fPIC -fvisibility=hidden *.c -o libattn_ort.so \\
        $(pkg-config --cflags --libs attn) -Wl,-rpath,$(pkg-config --variable=libdir attn)
    pip install onnxruntime onnx
    python run.py libattn_ort.so [--quick]
    python run.py libattn_ort.so MODEL.onnx OUT.onnx     # only changes a model

A model is changed by with_libattn(): its attention nodes get the domain "attn". A session that has
loaded the library then runs it. Exit code 1: a result differs.
"""

import argparse
import itertools
import os
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

OURS = {("", "Attention"), ("com.microsoft", "MultiHeadAttention"),
        ("com.microsoft", "GroupQueryAttention")}
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
         np.dtype(np.int32): TensorProto.INT32, np.dtype(np.int64): TensorProto.INT64,
         np.dtype(np.bool_): TensorProto.BOOL}
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float16): 4e-3}
rng = np.random.default_rng(0)


def with_libattn(model):
    """The model, with every attention that libattn_ort.so defines computed by it."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    changed = [node for node in model.graph.node if (node.domain, node.op_type) in OURS]
    for node in changed:
        node.domain = "attn"
    if not changed:
        raise SystemExit("run.py: the model has no attention node of " + str(sorted(OURS)))
    model.opset_import.append(helper.make_opsetid("attn", 1))
    return model


def session(model, library=None):
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors
    if library:
        options.register_custom_ops_library(library)
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def make_model(nodes, inputs, outputs, constants=(), dynamic=()):
    """inputs: arrays by name, whose shape is the model's but for dynamic axes; outputs: names and
    element types."""
    graph = helper.make_graph(
        nodes, "attention",
        [helper.make_tensor_value_info(name, TYPES[x.dtype], [
            None if axis in dynamic else n for axis, n in enumerate(x.shape)])
         for name, x in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        [onnx.numpy_helper.from_array(x, name) for name, x in constants])
    return helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)])


def single(operator, given, outputs, **attributes):
    """A model of one node, and its inputs. given: arrays or None in the order of the operator."""
    inputs = {f"x{i}": x for i, x in enumerate(given) if x is not None}
    names = ["" if x is None else f"x{i}" for i, x in enumerate(given)]
    node = helper.make_node(operator, names, outputs, **attributes,
                            domain="" if operator == "Attention" else "com.microsoft")
    kind = TYPES[given[0].dtype]
    return make_model([node], inputs, [(name, kind) for name in outputs]), inputs


def randn(*shape, dtype=np.float32):
    return rng.standard_normal(shape, dtype=np.float32).astype(dtype)


def rotary(rows, dim, dtype=np.float32):
    angles = np.arange(rows)[:, None] / 10000 ** (np.arange(dim // 2) / (dim // 2))
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


# ---- operators -------------------------------------------------------------------------------


def attention(batch, heads, heads_kv, rows, keys, dim, past=0, flat=False, dtype=np.float32,
              mask=None, **attributes):
    def one(n, length):
        return randn(*((batch, length, n * dim) if flat else (batch, n, length, dim)), dtype=dtype)
    given = [one(heads, rows), one(heads_kv, keys), one(heads_kv, keys), mask]
    outputs = ["y"]
    if past:
        given += [randn(batch, heads_kv, past, dim, dtype=dtype) for _ in "kv"]
        outputs += ["present_key", "present_value"]
    if flat:
        attributes.update(q_num_heads=heads, kv_num_heads=heads_kv)
    return single("Attention", given, outputs, **attributes)


def multi_head(batch, heads, rows, keys, dim, past=0, padding=None, bias=None, dtype=np.float32,
               **attributes):
    given = [randn(batch, rows, heads * dim, dtype=dtype)]
    given += [randn(batch, keys, heads * dim, dtype=dtype) for _ in "kv"] + [None, padding, bias]
    outputs = ["y"]
    if past:
        given += [randn(batch, heads, past, dim, dtype=dtype) for _ in "kv"]
        outputs += ["present_key", "present_value"]
    return single("MultiHeadAttention", given, outputs, num_heads=heads, **attributes)


def group_query(batch, heads, heads_kv, rows, dim, lengths, room=0, packed=False, bias=None,
                sink=None, dtype=np.float32, **attributes):
    """lengths: keys of each sequence with the new ones; room: rows of the past buffers."""
    total = max(lengths)
    widths = [heads + 2 * heads_kv] if packed else [heads, heads_kv, heads_kv]
    given = [randn(batch, rows, width * dim, dtype=dtype) for width in widths]
    given += [None] * (3 - len(given))
    given += [randn(batch, heads_kv, room, dim, dtype=dtype) for _ in "kv"]
    given += [np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
    given += rotary(max(total, room), dim, dtype) if attributes.get("do_rotary") else [None] * 2
    given += [None, bias, sink]
    return single("GroupQueryAttention", given, ["y", "present_key", "present_value"],
                  num_heads=heads, kv_num_heads=heads_kv, **attributes)


def checks():
    """Small problems: every layout and option."""
    lower = np.tril(np.ones((9, 14), bool))
    half = np.float16
    yield "Attention", attention(2, 4, 2, 9, 14, 40)
    yield "Attention, causal", attention(2, 4, 4, 9, 9, 64, is_causal=1)
    yield "Attention, flat, causal, past", attention(2, 4, 2, 5, 5, 64, 11, True, is_causal=1)
    yield "Attention, bool mask", attention(2, 4, 2, 9, 14, 64, mask=lower)
    yield "Attention, additive mask", attention(2, 4, 2, 9, 14, 64, mask=randn(2, 1, 9, 14))
    yield "Attention, softcap, scale", attention(1, 4, 1, 9, 14, 64, softcap=2.0, scale=0.3)
    yield "Attention, fp16", attention(2, 4, 2, 9, 14, 64, dtype=half)
    yield "MultiHead", multi_head(2, 4, 9, 14, 40)
    yield "MultiHead, causal, past", multi_head(2, 4, 5, 5, 64, 11, unidirectional=1)
    yield "MultiHead, padding by key", multi_head(
        2, 4, 9, 14, 64, padding=(np.arange(14) < [[14], [6]]).astype(np.int32))
    yield "MultiHead, padding by length", multi_head(
        2, 4, 9, 14, 64, padding=np.array([14, 6], np.int32))
    yield "MultiHead, bias", multi_head(2, 4, 9, 14, 64, bias=randn(1, 4, 9, 14))
    yield "GroupQuery, prompt", group_query(2, 4, 2, 9, 64, [9, 9])
    yield "GroupQuery, packed, RoPE", group_query(2, 4, 2, 9, 64, [9, 9], packed=True, do_rotary=1)
    yield "GroupQuery, one token, RoPE", group_query(
        3, 4, 2, 1, 64, [20, 7, 13], 24, do_rotary=1, rotary_interleaved=1)
    yield "GroupQuery, one token, no room", group_query(1, 4, 2, 1, 64, [20], 19, do_rotary=1)
    yield "GroupQuery, chunk", group_query(1, 4, 2, 6, 64, [20], 24, do_rotary=1)
    yield "GroupQuery, window", group_query(1, 4, 2, 30, 64, [30], local_window_size=7)
    yield "GroupQuery, window, one token", group_query(2, 4, 2, 1, 64, [20, 9], 24,
                                                       local_window_size=7)
    yield "GroupQuery, softcap", group_query(1, 4, 2, 9, 64, [9], softcap=3.0)
    yield "GroupQuery, sinks", group_query(2, 4, 2, 9, 64, [9, 9], sink=randn(4))
    yield "GroupQuery, smooth_softmax", group_query(1, 4, 2, 9, 64, [9], smooth_softmax=1)
    yield "GroupQuery, bias", group_query(2, 4, 2, 1, 64, [20, 9], 24, bias=randn(1, 4, 1, 20))
    yield "GroupQuery, fp16", group_query(2, 4, 2, 1, 64, [20, 9], 24, do_rotary=1, dtype=half)


def used(name, y, inputs):
    """The part of an output that is defined: keys past a sequence's end are not."""
    if name != "y" and "x5" in inputs and inputs["x5"].dtype == np.int32:
        return [row[:, :1 + n] for row, n in zip(y, inputs["x5"])]
    return list(y)


def check(model, inputs, library):
    """The largest difference, relative to the tolerance."""
    sessions = session(model), session(with_libattn(model), library)
    theirs, ours = (each.run(None, inputs) for each in sessions)
    worst = 0.0
    for output, x, y in zip(sessions[0].get_outputs(), theirs, ours):
        if x.shape != y.shape or x.dtype != y.dtype:
            return np.inf
        for a, b in zip(used(output.name, x, inputs), used(output.name, y, inputs)):
            error = np.abs(a.astype(np.float64) - b).max(initial=0.0)
            worst = max(worst, error / TOLERANCE[x.dtype] if error == error else np.inf)
    return worst


# ---- speed -----------------------------------------------------------------------------------


def shapes():
    for rows in (128, 512, 1024):
        yield f"Attention, prefill {rows}", attention(1, 16, 16, rows, rows, 64, flat=True,
                                                      is_causal=1)
    yield "MultiHead, encoder 384", multi_head(4, 12, 384, 384, 64)
    for rows in (128, 1024):
        yield f"GroupQuery, prefill {rows}", group_query(1, 32, 8, rows, 64, [rows], do_rotary=1)
    for keys in (512, 2048, 8192):
        yield f"GroupQuery, decode {keys}", group_query(1, 32, 8, 1, 64, [keys], keys, do_rotary=1)
    yield "GroupQuery, decode 8 x 1024", group_query(8, 32, 8, 1, 64, [1024] * 8, 1024, do_rotary=1)


class Timed:
    """A session with its inputs, and outputs of its own; a cache is written in place, as a program
    that generates text binds it."""

    def __init__(self, model, inputs, library=None):
        self.session, self.times = session(model, library), []
        self.binding = self.session.io_binding()
        values = {name: ort.OrtValue.ortvalue_from_numpy(x) for name, x in inputs.items()}
        for name, value in values.items():
            self.binding.bind_ortvalue_input(name, value)
        cached = "x5" in inputs and values["x3"].shape()[2] > 0
        for output in self.session.get_outputs():
            past = {"present_key": "x3", "present_value": "x4"}.get(output.name)
            if past and cached:
                self.binding.bind_ortvalue_output(output.name, values[past])
            else:
                self.binding.bind_output(output.name, "cpu")

    def run(self):
        begin = time.perf_counter()
        self.session.run_with_iobinding(self.binding)
        self.times.append(time.perf_counter() - begin)


def race(model, inputs, library, seconds):
    """The shortest times in us, of calls in turns."""
    both = Timed(model, inputs), Timed(with_libattn(model), inputs, library)
    for _ in range(3):
        for each in both:
            each.run()
    end = time.perf_counter() + seconds
    for each in both:
        each.times.clear()
    for i in itertools.count():
        for each in both[::1 if i % 2 else -1]:
            for _ in range(5):  # the threads of the other one come to rest
                each.run()
        if time.perf_counter() > end:
            return [min(each.times) * 1e6 for each in both]


# ---- a small language model --------------------------------------------------------------------


def decoder(layers=2, words=256, heads=8, heads_kv=2, dim=32):
    """Token ids and a cache in, logits and the cache out: GroupQueryAttention with RoPE, as the
    exporters of language models write it."""
    width, room = heads * dim, 64
    weights = {"embedding": randn(words, width), "cos": rotary(room, dim)[0],
               "sin": rotary(room, dim)[1]}
    inputs = {"ids": np.zeros((1, 1), np.int64), "last": np.zeros(1, np.int32),
              "total": np.zeros((), np.int32)}
    nodes, outputs, x = [helper.make_node("Gather", ["embedding", "ids"], ["x0"])], [], "x0"
    for i in range(layers):
        weights[f"qkv{i}"] = randn(width, (heads + 2 * heads_kv) * dim) * 0.1
        weights[f"o{i}"] = randn(width, width) * 0.1
        for each in "kv":
            inputs[f"past_{each}{i}"] = np.zeros((1, heads_kv, 0, dim), np.float32)
        nodes += [
            helper.make_node("MatMul", [x, f"qkv{i}"], [f"p{i}"]),
            helper.make_node("GroupQueryAttention",
                             [f"p{i}", "", "", f"past_k{i}", f"past_v{i}", "last", "total", "cos",
                              "sin"], [f"a{i}", f"past_k{i}_next", f"past_v{i}_next"],
                             domain="com.microsoft", num_heads=heads, kv_num_heads=heads_kv,
                             do_rotary=1),
            helper.make_node("MatMul", [f"a{i}", f"o{i}"], [f"b{i}"]),
            helper.make_node("Add", [x, f"b{i}"], [f"x{i + 1}"])]
        outputs += [(f"past_{each}{i}_next", TensorProto.FLOAT) for each in "kv"]
        x = f"x{i + 1}"
    weights["head"] = randn(width, words)
    nodes.append(helper.make_node("MatMul", [x, "head"], ["logits"]))
    return make_model(nodes, inputs, [("logits", TensorProto.FLOAT), *outputs],
                      list(weights.items()), dynamic=(1, 2)), inputs


def generate(run, inputs, prompt, count):
    """Greedy; the cache goes from one call to the next."""
    names = [output.name for output in run.get_outputs()]
    tokens, new = list(prompt), list(prompt)
    state = {name: x for name, x in inputs.items() if name.startswith("past")}
    for _ in range(count):
        found = dict(zip(names, run.run(None, {
            **state, "ids": np.array([new]), "total": np.array(len(tokens), np.int32),
            "last": np.array([len(tokens) - 1], np.int32)})))
        state = {name: found[name + "_next"] for name in state}
        new = [int(found["logits"][0, -1].argmax())]
        tokens += new
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", help="libattn_ort.so")
    parser.add_argument("models", nargs="*", help="a model, and where to write it changed")
    parser.add_argument("--quick", action="store_true", help="check, and time nothing")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing for each shape")
    options = parser.parse_args()
    options.library = os.path.abspath(options.library)
    if options.models:
        source, target = options.models
        onnx.save(with_libattn(onnx.load(source)), target)
        return 0
    failed = 0
    for name, (model, inputs) in checks():
        error = check(model, inputs, options.library)
        failed += not error <= 1
        print(f"{'ok  ' if error <= 1 else 'FAIL'} {name}: {error:.3f} of the tolerance")
    model, inputs = decoder()
    theirs = generate(session(model), inputs, [1, 2, 3, 5, 8], 24)
    ours = generate(session(with_libattn(model), options.library), inputs, [1, 2, 3, 5, 8], 24)
    failed += ours != theirs
    print(f"{'ok  ' if ours == theirs else 'FAIL'} a decoder of two layers: 24 tokens {ours[5:]}")
    if not options.quick and not failed:
        print(f"{'':30} ONNX Runtime   libattn   ratio")
        ratios = []
        for name, (model, inputs) in shapes():
            theirs, ours = race(model, inputs, options.library, options.seconds)
            ratios.append(theirs / ours)
            print(f"{name:30} {theirs:9.0f} us {ours:6.0f} us   {ratios[-1]:.2f}")
        print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.2f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
