# SPDX-License-Identifier: Apache-2.0
"""The tests of test_peers.sh: python3 test_peers.py SOURCE_DIR C_COMPILER

Invariant: each planted fault must be found by the very check that it is planted for.
"""

import contextlib
import ctypes
import io
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

SOURCE, COMPILER = Path(sys.argv[1]).resolve(), sys.argv[2]
sys.path.insert(0, str(SOURCE / "python"))

from attn import _library, _problem  # noqa: E402
from attn.peers import grids, measure, picture, program, report as peers_report  # noqa: E402
from attn.peers.cpu import CpuMachine  # noqa: E402
from attn.peers.gpu import GpuMachine  # noqa: E402
from attn.peers.machine import DeviceLost, NotRun, Side  # noqa: E402
from attn.peers.progress import Progress  # noqa: E402

ENTRY = "fwd_wmma_fp16_d64_32x64_w4_s2"
KERNELS = {"ours": [ENTRY], "flash": ["void pytorch_flash::flash_fwd_kernel<>"],
           "cudnn": ["cudnn_generated_fort_native_sdpa_sm90_flash_fprop"],
           "efficient": ["fmha_cutlassF_f16_aligned_64x64_rf_sm80"],
           "flex": ["triton_tem_fused_0"], "fwd_scalar": ["fwd_scalar"],
           "sdpa": ["aten::scaled_dot_product_attention"]}
SPEED = {"ours": 5.0, "flash": 12.0, "cudnn": 10.0, "efficient": 20.0, "flex": 15.0, "sdpa": 25.0,
         "fwd_scalar": 40.0}  # microseconds


class FakeCase:
    """Outputs are numbers: 1 is right, 3 is the negative control."""

    variant, flops, set_bytes = ENTRY, 2.1e9, 4 << 20

    def __init__(self, machine, names, sets):
        self.sets = sets
        roles = {"ours": "ours", "fwd_scalar": "variant"}
        self.ours, *self.others = [
            Side(name, roles.get(name, "peer"),
                 KERNELS[name][0] if name in roles else peers_report.PEERS[name], None)
            for name in names]
        self.hosts = [Side("attn.torch.sdpa", "host", None, None),
                      Side("sdpa", "host", None, None)]
        self.machine = machine
        machine.opened += 1

    def close(self):
        self.machine.opened -= 1


class FakeGraph:
    def __init__(self, machine, side, calls, sets):
        self.machine, self.side, self.sets = machine, side, sets

    def replay_us(self, count):
        return self.machine.samples(self.side, count)

    def rerun(self):
        return self.machine.results(self.side, "after", self.sets)


class FakeMachine:
    """Steady speeds with drift and noise; `faults` maps a fault to the side that has it."""

    gpu, l2_bytes, most_sets, modes = "NVIDIA H200", 60 << 20, 8, ("graph", "eager")
    proves = GpuMachine.proves

    def __init__(self, **faults):
        self.faults, self.random, self.clock, self.opened = faults, random.Random(1), 0, 0
        self.sums, self.blanked = 0, 0

    def has(self, fault, side):
        return self.faults.get(fault) == side.name

    def case(self, shape, dtype, names, sets):
        if self.faults.get("refused"):
            raise _library.Unsupported("head_dim is 96, expected 64")
        variants = ["fwd_scalar"] if self.faults.get("variants") else []
        return FakeCase(self, ["ours", *variants, *names], sets)

    def samples(self, side, count):
        self.clock += count
        drift = 1 + 1e-4 * self.clock
        noise = [1 + 0.02 * self.random.expovariate(1) for _ in range(count)]
        scale = 1e-4 if self.has("impossible", side) else 1
        return [round(SPEED.get(side.name, 1.0) * scale * drift * one, 6) for one in noise]

    def results(self, side, when, sets):
        value = 1.0
        if self.has("wrong_" + when, side):
            value = 1.2
        if self.has("nan_" + when, side):
            value = math.nan
        return [1.0] * (sets - 1) + [value]

    def outputs(self, side, case):
        if self.has("raises", side):
            raise RuntimeError("No available kernel.\nmore about it")
        if self.has("crashes", side):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self.results(side, "before", case.sets)

    def verify(self, case, outputs, which):
        passed = all(value == 1 for value in outputs)
        return {"passed": passed, "set": which, "rows": 96, "text": "max error 0.2"}

    def difference(self, outputs, expected):
        if len(outputs) != len(expected):
            return math.inf
        worst = max(abs(one - other) for one, other in zip(outputs, expected))
        return math.inf if any(map(math.isnan, outputs)) else worst

    def negative_control(self, case):
        return [1.0 if self.faults.get("negative_control") else 3.0] * case.sets

    def checksum(self, case):
        self.sums += 1
        return self.sums if self.faults.get("changes_inputs") else 0

    def capture(self, side, calls, sets):
        if self.has("no_capture", side):
            raise RuntimeError("operation not permitted when stream is capturing")
        return FakeGraph(self, side, calls, sets)

    def eager_us(self, side, samples, calls, sets):
        return [us + 20 for us in self.samples(side, samples)]

    def blank(self, outputs):
        self.blanked += 1

    def host_us(self, side, samples, calls, sets):
        return self.samples(side, samples)

    def empty_call_us(self, samples, calls):
        return [1.0] * samples

    def kernels(self, side):
        if self.has("profiler_fails", side):
            raise RuntimeError("CUPTI_ERROR")
        if self.has("other_kernel", side):
            return ["void at::native::elementwise_kernel<>"]
        if self.has("two_kernels", side):
            return KERNELS[side.name] * 2
        return [] if self.has("no_kernel", side) else KERNELS[side.name]

    def state(self):
        return {"clocks.sm": "1980 MHz"}

    def environment(self):
        return {"gpu": self.gpu, "torch": "none"}

    def recover(self, error):
        if "illegal memory access" in str(error):
            raise DeviceLost("the GPU does not answer")


class FakeCpu(FakeMachine):
    """The same without a GPU: no graphs, no kernels of ours that a profiler could see."""

    gpu, l2_bytes, most_sets, modes = None, None, 1, ("eager",)
    proves = CpuMachine.proves

    def outputs(self, side, case):
        return self.results(side, "after" if self.clock else "before", case.sets)

    def capture(self, side, calls, sets):
        raise AssertionError("there are no graphs on a CPU")

    host_us = empty_call_us = capture

    def kernels(self, side):
        if side.name in ("ours", "fwd_scalar"):
            return KERNELS["sdpa"] if self.has("falls_back", side) else []
        return super().kernels(side)

    def environment(self):
        return {"device": "a CPU", "torch": "none"}

    def state(self):
        return {}

    def extra_memory(self):
        return {"name": "B1 H8 S16384 D128 causal", "workspace_mb": 2.25, "grown_mb": 2.5}


def run(arguments=(), machine=FakeMachine, **faults):
    """(exit code, report, what was printed) of a run over the usual grid."""
    machine, out = machine(**faults), io.StringIO()
    options = program.parse(["--quick", *arguments])
    report = program.new_report(machine, options)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(out):
        code = program.run(machine, options, report)
    assert machine.opened == 0, "a case was left open"
    return code, report, out.getvalue()


class Statistics(unittest.TestCase):
    def test_interval_of_the_median(self):
        self.assertIsNone(peers_report.median_interval([1.0] * 5))
        self.assertEqual(peers_report.median_interval([6, 1, 5, 2, 4, 3]), (1, 6, 0.96875))
        low, high, coverage = peers_report.median_interval(list(range(12)))
        self.assertEqual((low, high), (2, 9))
        self.assertAlmostEqual(coverage, 1 - 2 * (1 + 12 + 66) / 4096)

    def test_interval_covers_as_often_as_it_says(self):
        source, hits, trials = random.Random(7), 0, 4000
        for _ in range(trials):
            low, high, coverage = peers_report.median_interval(
                [source.expovariate(1) for _ in range(12)])
            hits += low <= math.log(2) <= high
        self.assertAlmostEqual(hits / trials, coverage, delta=0.012)

    def test_drift_hits_both_sides_alike(self):
        clock = iter(range(10 ** 6))
        rounds = measure.abba("ours", ["peer"], 12, lambda name: [
            (20 if name == "peer" else 10) * (1 + 0.001 * next(clock)) for _ in range(5)])["peer"]
        found = peers_report.paired_ratio(rounds)
        self.assertAlmostEqual(found["ratio"], 2, delta=1e-3)
        self.assertLess(found["high"] - found["low"], 1e-3)

    def test_order_is_abba_and_turns_round(self):
        order = []
        measure.abba("o", ["x", "y"], 2, lambda name: order.append(name) or [1.0])
        self.assertEqual("".join(order), "oxxooyyo" + "oyyooxxo")

    def test_pace(self):
        self.assertEqual(measure.pace(2.4, 12, 1e-3, [1e-3] * 4), (12, 11))
        rounds, count = measure.pace(1.0, 12, 0.2, [0.2])
        self.assertEqual((rounds, count), (measure.FEWEST_ROUNDS, 1))
        self.assertIsNotNone(peers_report.median_interval([1.0] * measure.FEWEST_ROUNDS))

    def test_geometric_mean(self):
        self.assertAlmostEqual(peers_report.geometric_mean([2.0, 8.0]), 4.0)


class Grids(unittest.TestCase):
    def test_gradients(self):
        shapes = grids.bwd()
        self.assertEqual({shape.option for shape in shapes}, {"backward"})
        self.assertEqual({shape.head_dim for shape in shapes}, {64, 128, 256})
        self.assertEqual({min(shape.seq_q for shape in shapes), max(shape.seq_q for shape in shapes)},
                         {512, 16384})
        self.assertTrue(any(shape.heads_q != shape.heads_kv for shape in shapes))
        code, report, text = run(arguments=["--grid", "bwd", "--only", "S512 D64"])
        self.assertEqual((code, len(report["rows"])), (0, 2))
        self.assertIn("B32 H32 S512 D64 causal backward", text)
        self.assertIn(", fp16, backward", picture.picture(report))
        for launches, passes in ((1, 0), (2, 1)):  # of ours
            machine = FakeMachine()
            side = Side("ours", "ours", ENTRY, None, launches=2)
            self.assertEqual(machine.proves(side, [ENTRY] * launches), bool(passes))

    def test_every_recorded_row_is_in_a_grid(self):
        recorded = grids.load_recorded()
        shapes = [shape for _, shape in grids.shapes_of(["canonical", "small", "full", "decode"])]
        self.assertEqual(len(shapes), len(set(shapes)))
        self.assertEqual(set(shapes), set(recorded["by_shape"]))
        for us in recorded["by_shape"].values():
            self.assertLessEqual(set(us), set(recorded["columns"]))
            self.assertTrue(all(value > 0 for value in us.values()))

    def test_names_and_sets(self):
        canonical = grids.canonical()[0]
        self.assertEqual(str(canonical), "B2 H8 S512 D64")
        self.assertEqual(str(grids.Shape(1, 32, 8, 1, 9, 128, True)),
                         "B1 H32/8 Sq1 Skv9 D128 causal")
        self.assertEqual(measure.sets_for(canonical, 8), 8)
        self.assertEqual(measure.sets_for(grids.square(1, 32, 32, 16384, 64, False), 8), 1)

    def test_fa3_is_scaled_or_absent(self):
        recorded, shape = grids.load_recorded(), grids.canonical()[0]
        then = recorded["by_shape"][shape]
        found = grids.scaled_fa3(recorded, shape, "NVIDIA H200", "fp16", 2 * then["cudnn"])
        self.assertAlmostEqual(found["us"], 2 * then["fa3"])
        self.assertIs(found["live"], False)
        decode = grids.decode()[0]
        found = grids.scaled_fa3(recorded, decode, "NVIDIA H200", "fp16", 1.0)
        self.assertEqual(found["kernel"], "fa3_split")
        for gpu, dtype, cudnn, which in (("NVIDIA H100", "fp16", 9.0, shape),
                                         ("NVIDIA H200", "bf16", 9.0, shape),
                                         ("NVIDIA H200", "fp16", None, shape),
                                         ("NVIDIA H200", "fp16", 9.0, shape._replace(batch=3))):
            self.assertIsNone(grids.scaled_fa3(recorded, which, gpu, dtype, cudnn))


class Course(unittest.TestCase):
    def assert_invalid(self, part, **faults):
        """The row says it, and no number of it is printed or stored."""
        code, report, text = run(**faults)
        self.assertEqual(code, 1)
        for row in report["rows"]:
            self.assertIn(part, "; ".join(row["invalid"]))
            self.assertIsNone(row["summary"])
        self.assertIn("INVALID", text)
        self.assertNotIn("geometric mean", text)

    def test_a_good_run(self):
        code, report, text = run()
        self.assertEqual(code, 0)
        self.assertTrue(report["complete"])
        for row in report["rows"]:
            graph = row["summary"]["modes"]["graph"]
            ratio = graph["ratios"]["cudnn"]
            self.assertEqual(graph["best"], "cudnn")
            self.assertAlmostEqual(ratio["ratio"], 2.0, delta=0.05)
            self.assertTrue(ratio["low"] <= ratio["ratio"] <= ratio["high"])
            self.assertAlmostEqual(row["summary"]["tflops"], row["flops"] / graph["ours_us"] / 1e6)
            self.assertTrue(all(side["proven"] for side in row["sides"].values()))
            self.assertEqual(set(row["verified"]), {"before", "after"})
            self.assertIn("flex", graph["us"])
            self.assertIs(row["summary"]["fa3"]["live"], False)
        self.assertRegex(text, r"graph: best peer / ours: geometric mean (1\.9[5-9]|2\.0[0-5])")
        for part in ("scaled, not live", "2 measured, 0 invalid", ENTRY,
                     "intervals hold 1", "clocks.sm 1980 MHz"):
            self.assertIn(part, text)

    def test_all_variants(self):
        code, report, text = run(variants=True)
        self.assertEqual(code, 0)
        self.assertIn("configurations", text)
        self.assertAlmostEqual(
            report["rows"][0]["summary"]["modes"]["graph"]["ratios"]["fwd_scalar"]["ratio"], 8,
            delta=0.2)
        self.assertEqual(report["rows"][0]["summary"]["modes"]["graph"]["best"], "cudnn")
        code, report, text = run(variants=True, wrong_before="fwd_scalar")
        self.assertEqual(code, 1)
        self.assertIn("fwd_scalar not timed", text)

    def test_our_result_is_wrong(self):
        self.assert_invalid("our result before the timing is wrong", wrong_before="ours")
        self.assert_invalid("our result before the timing is wrong", nan_before="ours")
        self.assert_invalid("our result after the timing is wrong", nan_after="ours")

    def test_a_peer_is_wrong(self):
        for fault in ("wrong_before", "nan_before", "raises", "no_capture"):
            code, report, text = run(**{fault: "cudnn"})
            self.assertEqual(code, 0, fault)
            for row in report["rows"]:
                self.assertTrue(row["sides"]["cudnn"]["error"], fault)
                self.assertNotIn("\n", row["sides"]["cudnn"]["error"])
                self.assertEqual(row["summary"]["modes"]["graph"]["best"], "flash")
                self.assertNotIn("cudnn", row["summary"]["modes"]["graph"]["us"])
                self.assertIsNone(row["summary"]["fa3"])
            self.assertIn("cudnn not timed", text)
        self.assert_invalid("cudnn: its result after the timing", nan_after="cudnn")

    def test_other_kernels_than_expected(self):
        self.assert_invalid("cudnn ran void at::native", other_kernel="cudnn")
        self.assert_invalid("ours ran void at::native", other_kernel="ours")
        self.assert_invalid(f"ours ran {ENTRY}, {ENTRY} where", two_kernels="ours")
        self.assert_invalid("flash ran no kernel", no_kernel="flash")
        self.assert_invalid("could not be named", profiler_fails="ours")

    def test_impossible_things(self):
        self.assert_invalid("more than the GPU can do", impossible="ours")
        self.assert_invalid("mean of V", negative_control=True)
        self.assert_invalid("an input was changed", changes_inputs=True)

    def test_nothing_to_measure(self):
        code, report, text = run(refused=True)
        self.assertEqual(code, 3)
        self.assertIn("head_dim is 96", report["rows"][0]["reason"])
        self.assertIn("not measured: Unsupported: head_dim is 96", text)
        code, report, _ = run(arguments=["--peers", ""])
        self.assertEqual(code, 0)
        self.assertIsNone(report["rows"][0]["summary"]["modes"]["graph"]["best"])

    def test_without_a_gpu(self):
        code, report, text = run(machine=FakeCpu)
        self.assertEqual(code, 0)
        self.assertEqual(len(report["rows"]), 3 * len(grids.cpu()))
        for row in report["rows"]:
            self.assertEqual(list(row["summary"]["modes"]), ["eager"])
            self.assertIsNone(row["summary"]["fa3"])
            self.assertTrue(row["sides"]["ours"]["proven"] and row["sides"]["sdpa"]["proven"])
            self.assertEqual(set(row["verified"]), {"before", "after"})
        for part in ("plain calls", "B2 H8 S512 D64 bf16", "workspace 2.2 MB", "15 measured"):
            self.assertIn(part, text)
        self.assertNotIn("FA3", text)
        code, report, text = run(machine=FakeCpu, falls_back="ours")
        self.assertEqual(code, 1)
        self.assertIn("ours ran aten::scaled_dot", report["rows"][0]["invalid"][0])
        for fault, part in (("nan_before", "our result before"), ("nan_after", "our result after")):
            code, report, _ = run(machine=FakeCpu, arguments=["--only", "S512", "--dtype", "fp32"],
                                  **{fault: "ours"})
            self.assertEqual(code, 1)
            self.assertIn(part, report["rows"][0]["invalid"][0])

    def test_a_limit_of_time(self):
        code, report, text = run(arguments=["--limit", "5"])
        self.assertEqual(code, 3)
        self.assertIn("not measured: the limit of 5 s was reached", text)
        self.assertTrue(report["complete"])
        self.assertEqual(run(arguments=["--limit", "600"])[0], 0)

    def test_some_shapes_alone(self):
        report = run(arguments=["--only", "causal", "--dtype", "fp16", "bf16"])[1]
        self.assertEqual([(row["name"], row["dtype"]) for row in report["rows"]],
                         [("B2 H8 S512 D64 causal", "fp16"), ("B2 H8 S512 D64 causal", "bf16")])

    def test_peers_of_another_device(self):
        for machine, name in ((FakeMachine, "sdpa"), (FakeCpu, "cudnn")):
            with self.assertRaisesRegex(_library.InvalidArgument, name):
                run(arguments=["--peers", name], machine=machine)

    def test_what_a_cpu_would_take_too_long_for(self):
        with self.assertRaisesRegex(NotRun, "3.5e.13 floating-point operations"):
            CpuMachine.check_size(None, 3.5e13)
        CpuMachine.check_size(None, 1e11)

    def test_the_gpu_is_lost(self):
        code, report, _ = run(crashes="flash")
        self.assertEqual(code, 1)
        self.assertFalse(report["complete"])
        self.assertEqual(len(report["rows"]), 1)
        self.assertIsNone(report["rows"][0]["summary"])


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "run.json"

    def tearDown(self):
        self.folder.cleanup()

    def show(self, *arguments):
        path = f"{self.folder.name}:{SOURCE / 'python'}"  # a planted torch.py comes first
        done = subprocess.run([sys.executable, "-B", "-m", "attn.peers", *arguments],
                              capture_output=True, text=True, timeout=60,
                              env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"})
        return done.returncode, done.stdout, done.stderr

    def test_a_written_file_says_the_same_again(self):
        _, _, text = run(arguments=["--json", str(self.path)])
        code, shown, errors = self.show("--show", str(self.path))
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(shown, text)
        report = json.loads(self.path.read_text())
        self.assertEqual(set(report), {"schema", "complete", "environment", "arguments", "rows"})
        self.assertEqual([path.name for path in self.path.parent.iterdir()], ["run.json"])
        self.assertEqual(json.loads(run(arguments=["--json"])[2])["schema"], "attn-peers/1")
        run(machine=FakeCpu, arguments=["--json", str(self.path)])
        self.assertEqual(self.show("--show", str(self.path))[0], 0)

    def test_files_of_old_are_read(self):
        for path in sorted((SOURCE / "results").glob("h200-*.json")):
            code, shown, errors = self.show("--show", str(path))
            report = json.loads(path.read_text())
            self.assertEqual(code, 0 if report["complete"] else 1, errors)
            self.assertNotIn("are not those of its samples", errors)
            has_peers = any(row["summary"] and row["summary"]["modes"]["graph"]["best"]
                            for row in report["rows"])
            self.assertEqual("geometric mean" in shown, has_peers)

    def test_a_picture(self):
        run(arguments=["--json", str(self.path)])
        drawn = Path(self.folder.name) / "ratios.svg"
        code, _, errors = self.show("--show", str(self.path), "--picture", str(drawn))
        self.assertEqual((code, errors), (0, ""))
        tree = xml.etree.ElementTree.fromstring(drawn.read_text())
        self.assertTrue(tree.tag.endswith("svg"))
        words = "".join(tree.itertext())
        for part in ("B2 H8 S512 D64 causal", "× cuDNN", "NVIDIA H200", "0 of them below 1"):
            self.assertIn(part, words)
        code, report, _ = run(refused=True)
        with self.assertRaisesRegex(ValueError, "no ratio"):
            picture.picture(report)

    def test_a_changed_file_is_found_out(self):
        run(arguments=["--json", str(self.path)])
        report = json.loads(self.path.read_text())
        for entry in report["rows"][1]["pairs"]["graph"]["cudnn"]:
            entry["other"][0] = [2 * us for us in entry["other"][0]]
            entry["other"][1] = [2 * us for us in entry["other"][1]]
        self.path.write_text(json.dumps(report))
        code, _, errors = self.show("--show", str(self.path))
        self.assertEqual(code, 1)
        self.assertIn("are not those of its samples", errors)

    def test_a_run_that_did_not_end(self):
        run(arguments=["--json", str(self.path)])
        report = json.loads(self.path.read_text())
        report["complete"] = False
        self.path.write_text(json.dumps(report))
        code, _, errors = self.show("--show", str(self.path))
        self.assertEqual(code, 1)
        self.assertIn("did not come to its end", errors)

    def test_the_recorded_table(self):
        code, shown, _ = self.show("--show", str(grids.RECORDED))
        self.assertEqual(code, 0)
        rows = [line for line in shown.splitlines() if line.startswith("B")]
        self.assertEqual(len(rows), 62)
        self.assertIn("12.22", rows[0])

    def test_usage(self):
        (Path(self.folder.name) / "torch.py").write_text("raise ImportError('planted')\n")
        self.path.write_text('{"schema": "something else"}')
        for arguments, part in ((["--grid", "huge"], "huge"), (["--peers", "flash,fa9"], "fa9"),
                                (["--seconds", "0"], "--seconds"), (["--dtype", "fp8"], "fp8"),
                                (["--lib", "nowhere.so"], "nowhere.so"),
                                (["--only", "("], "--only"), (["--limit", "-1"], "--limit"),
                                (["--threads", "0"], "--threads"),
                                (["--show", "nowhere.json"], "nowhere.json"),
                                (["--show", str(self.path)], "something else")):
            code, out, errors = self.show(*arguments)
            self.assertEqual((code, out), (2, ""), arguments)
            self.assertIn(part, errors)
            self.assertEqual(errors.count("\n"), 1, errors)
        for text in ("[]", "7", "{}", '{"schema": "attn-peers/1"}',
                     '{"schema": "attn-peers/1", "complete": true, "rows": [1]}',
                     '{"schema": "attn-peers-recorded/1"}',
                     '{"schema": "attn-peers-recorded/1", "rows": 3}'):
            self.path.write_text(text)
            code, out, errors = self.show("--show", str(self.path))
            self.assertEqual((code, out), (2, ""), text)
            self.assertEqual(errors.count("\n"), 1, errors)
            self.assertIn("peers: --show: ", errors)
        code, _, errors = self.show("--lib", str(self.path))
        self.assertEqual(code, 3)
        self.assertIn("NOT RUN: PyTorch is not there", errors)


class Lines(unittest.TestCase):
    def test_progress(self):
        out = io.StringIO()
        progress = Progress(4, out)
        progress.started -= 30
        progress.begin("a shape")
        progress.step("a shape", "5 us")
        self.assertEqual(out.getvalue(), "[1/4] a shape: 5 us, about 1:30 left\n")
        out = io.StringIO()
        out.isatty = lambda: True
        progress = Progress(2, out)
        progress.begin("a shape")
        progress.step("a shape", "5 us")
        progress.close()
        self.assertIn("[........................] 0/2  a shape", out.getvalue())
        self.assertIn("a shape: 5 us\n", out.getvalue())
        self.assertIn("[############............] 1/2, about 0 s left", out.getvalue())


class Structs(unittest.TestCase):
    NAMES = {"attn_error": _library.Error, "attn_options": _library.Options,
             "attn_strides": _library.Strides, "attn_bias_strides": _library.BiasStrides,
             "attn_problem": _library.Problem, "attn_tensors": _library.Tensors,
             "attn_row": _library.Row, "attn_comparison": _library.Comparison,
             "attn_device": _library.Device, "attn_plan_options": _library.PlanOptions,
             "attn_variant": _library.Variant}

    def test_no_field_is_missing(self):
        text = "".join(path.read_text() for path in (SOURCE / "include").glob("*.h"))
        header = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        for name, struct in self.NAMES.items():
            body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", header, re.S).group(1)
            members = [re.sub(r"\[.*", "", declarator).split()[-1].lstrip("*")
                       for line in body.split(";") for declarator in line.split(",")
                       if line.strip()]
            fields = ["pass" if field == "passed" else field for field, *_ in struct._fields_]
            self.assertEqual(fields, members)

    def test_tensors_as_bytes(self):
        names = [name for name, _ in _library.Tensors._fields_]
        values = {name: 1 << (38 + n) for n, name in enumerate(names[1:names.index("k_new")])}
        size = _library.Tensors.k_new.offset  # without the fields of attn_append
        expected = _library.Tensors(size, **values)
        self.assertEqual(_library.tensors(**values), bytes(expected)[:size])

    def test_problems_as_bytes(self):
        most = iter(range(1 << 62, 1 << 63))  # of 64 bits, and each another
        sizes, q, k, v, o, window, bias, mask, (alibi,), packed = (
            tuple(next(most) for _ in range(count)) for count in (7, 3, 3, 3, 3, 2, 4, 4, 1, 2))
        plain = dict(dtype=1, sizes=sizes, q=q, k=k, v=v, o=o)
        size = _library.Problem.k_new.offset  # without the fields of attn_append
        first = (size, 1, -1, -1, 0, *sizes, q, k, v, o,
                 (_library.AUTO,) * 3)
        self.assertEqual(
            _problem.problem(**plain, scale=0.5, causal=2, window=window, softcap=1.5,
                             bias=(2, bias), mask=mask, alibi=alibi, sink=True, packed=packed,
                             used_kv=True, tensor_cores=2, alignment=4096),
            bytes(_library.Problem(*first, 0.5, 2, *window, 1.5, 2, *(True,) * 6, (False, False),
                                   bias, mask, alibi, *packed, 2, 4096))[:size])
        self.assertEqual(_problem.problem(**plain),
                         bytes(_library.Problem(*first, math.nan, 0, -1, -1, alignment=16))[:size])
        backward = _library.with_gradients(_problem.problem(**plain), *sum((q, k, v, o), ()))
        self.assertEqual(backward, bytes(_library.Problem(*first, math.nan, 0, -1, -1, alignment=16,
                                                          dq=q, dk=k, dv=v, d_o=o))[:size])

    def test_layouts_are_those_of_the_header(self):
        lines = ['#include "attn_inspect.h"', '#include "attn_verify.h"', "#include <stdio.h>", "int main(void) {"]
        expected = []
        for name, struct in self.NAMES.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected.append(f"{name} {ctypes.sizeof(struct)}")
            for field, *_ in struct._fields_:
                member = "pass" if field == "passed" else field
                lines.append(f'printf("{name}.{member} %zu %zu\\n", offsetof({name}, {member}), '
                             f"sizeof((({name} *)0)->{member}));")
                where = getattr(struct, field)
                expected.append(f"{name}.{member} {where.offset} {where.size}")
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder) / "layout.c", Path(folder) / "layout"
            source.write_text("\n".join([*lines, "return 0; }"]))
            subprocess.run([COMPILER, "-std=c11", f"-I{SOURCE / 'include'}", "-o", str(program),
                            str(source)], check=True)
            printed = subprocess.run([str(program)], check=True, capture_output=True, text=True)
        self.assertEqual(printed.stdout.splitlines(), expected)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]], verbosity=1)
