#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# test_cuda.sh - proves what attest does with GPUs, without one: by a driver that is absent, by one
# that computes nothing, and by one that computes on the host (tests/cuda/fake_driver.h). An absent GPU is
# NOT RUN, exit code 3; a kernel that leaves NaN in its output is wrong, exit code 1, and has no time; one that
# is right is timed in each mode.
#
# usage: test_cuda.sh SOURCE_DIR BUILD_DIR
. "$(dirname "$0")/cli.sh"

fake=$(dirname "$attest")/tests/libfake_driver.so
unset ATTN_DRIVER FAKE_DRIVER_COMPUTE FAKE_DRIVER_DEVICES FAKE_DRIVER_CAPABILITY

# ---- no GPU ----------------------------------------------------------------------------------

npy q.npy f2 "1, 2, 20, 64" 1
npy k.npy f2 "1, 1, 24, 64" 2
npy v.npy f2 "1, 1, 24, 64" 3
files="--q q.npy --k k.npy --v v.npy -o o.npy --lse l.npy"
absent="--device cuda --driver $work/no_driver.so"
complains "plan without a GPU" 3 "no_driver.so" plan $absent
complains "bench without a GPU" 3 "no_driver.so" bench $absent
complains "bench of a grid without a GPU" 3 "no_driver.so" bench $absent --grid small --json
complains "attn without a GPU" 3 "no_driver.so" attn $files $absent
accepts "devices without a GPU" devices --driver $work/no_driver.so
says "devices without a GPU: why" "cuda:0   not available: no CUDA driver"
refuses "PTX of a CPU" "device = cpu, expected a GPU" bench --ptx
refuses "modes of a CPU" "--mode: device = cpu" bench --mode graph
refuses "image of a CPU" "device = cpu, expected a GPU" bench --image q.npy --variant cpu_tile_c

# ---- a GPU of sorts --------------------------------------------------------------------------

if [ ! -f "$fake" ]; then
    skipped "fake_driver" "no $fake"
    finish
fi
gpu="--device cuda --driver $fake"
accepts "devices" devices --driver "$fake"
says "devices: GPU" "cuda:0   Fake GPU 0, sm_90, 20 SMs, 8.0 GiB, CUDA 12.8"
accepts "devices as JSON" devices --driver "$fake" --json
says "devices as JSON" '"driver": 12080'
complains "a GPU too many" 3 "cuda:1" plan --device cuda:1 --driver "$fake"
FAKE_DRIVER_CAPABILITY=75 "$attest" plan $gpu --dtype fp16 >stdout 2>stderr
holds "an old GPU is not run" [ $? -eq 3 ]

run plan $gpu --dtype fp16
if [ $code -eq 3 ]; then
    reason="not run: this build of libattn has no GPU kernels: "
    complains "plan without kernels" 3 "$reason" plan $gpu
    complains "plan of one without kernels" 3 "$reason" plan $gpu --variant fwd_scalar_fp16_d64_32x64_w4_s2
    complains "bench without kernels" 3 "$reason" bench $gpu
    complains "bench of a grid without kernels" 3 "$reason" bench $gpu --grid small --json
fi
if [ $code -ne 0 ]; then
    skipped "kernels" "this build has none for fp16"
    finish
fi
kernel=$(awk '$1 == "variant" { print $2 }' stdout)
accepts "plan --all" plan $gpu --all
says "plan on a GPU: fp16" "fp16 B2 H8 S512 D64"
says "plan --all: images" "images sm_80 sm_90 compute_80"
accepts "plan --all of batch_invariant" plan $gpu --dtype fp16 --batch-invariant --all
holds "plan --all of batch_invariant: others do not apply" \
    sh -c '! grep " yes" stdout | grep -v invariant | grep .'
accepts "plan of pages" plan $gpu --dtype fp16 --page-size 16
holds "plan of pages: a line for each reason of a family, none for another dtype" \
    sh -c 'test "$(grep -c ^refused stdout)" -lt 20 && ! grep "^refused.*_bf16_" stdout'
accepts "plan --json" plan $gpu --dtype fp16 --all --json
says "plan --json: images" '"compute_80"'
says "plan --json: warps" '"warps": '
if [ -e "$(dirname "$attest")/libvgpu.so" ]; then
    accepts "plan for a GPU that is not here" plan --device sm_80 --seq 512,1024
    says "plan for a GPU that is not here" "fp16 B2 H8 S1024 D64"
    holds "plan for a GPU that is not here: its kernels" sh -c '! grep -q "^variant *fwd_hopper" stdout'
fi
accepts "plan of the PTX" plan $gpu --dtype fp16 --ptx
says "plan of the PTX" "$kernel@ptx"
refuses "dtype" "no variant is for this dtype" plan $gpu --dtype fp32 --tensor-cores never
accepts "plan of fp32" plan $gpu --dtype fp32
says "plan of fp32" "fwd_tf32_"
refuses "head dimension that is too large" "head_dim = 584" plan $gpu --dtype fp16 --dim 584
refuses "head dimension that is odd" "head_dim = 65" plan $gpu --dtype fp16 --dim 65
refuses "image without a variant" "no --variant" bench $gpu --image q.npy
refuses "image and PTX" "expected one of the two" bench $gpu --image q.npy --ptx --variant "$kernel"
refuses "image that is none" "neither a cubin" bench $gpu --image q.npy --variant "$kernel" --dtype fp16
refuses "image that is missing" "no.cubin: No such file" bench $gpu --image no.cubin --variant "$kernel"
: >empty
refuses "image that is empty" "is empty" bench $gpu --image empty --variant "$kernel"
refuses "image of no variant" "variant = nix" bench $gpu --image q.npy --variant nix
refuses "PTX of no variant" "variant = nix" bench $gpu --ptx --variant nix
refuses "variant of a CPU" "is for device cpu, and --device is cuda" plan $gpu --variant cpu_tile_c
refuses "variant of a GPU" "is for device cuda, and --device is cpu" plan --variant "$kernel"
mkfifo pipe
refuses "image that is a pipe" "not a regular file" bench $gpu --image pipe --variant "$kernel"
refuses "one variant and all" "--all-variants" bench $gpu --variant "$kernel" --all-variants

# ---- a kernel that does nothing --------------------------------------------------------------

small="--batch 1 --heads 2 --heads-kv 1 --seq-q 20 --seq-kv 24 --dtype fp16 --seconds 0.01"
complains "bench, nothing computed" 1 "bench: wrong: " bench $gpu $small
complains "bench as JSON, nothing computed" 1 "bench: wrong: " bench $gpu $small --json
says "bench as JSON, nothing computed" '"outcome": "wrong"'
run bench $gpu $small --all-variants
holds "all variants, nothing computed: exit code" [ $code -eq 1 ]
says "all variants, nothing computed" "$kernel wrong: "
complains "attn, nothing computed" 1 "was not written" attn $files $gpu --verify

# ---- one that is right -----------------------------------------------------------------------

FAKE_DRIVER_COMPUTE=1
export FAKE_DRIVER_COMPUTE
accepts "bench" bench $gpu $small --lse
for mode in eager stream graph; do
    says "bench: $mode" "$mode "
done
says "bench: checked" "40 of 40 rows"
says "bench: the device" "on Fake GPU 0, sm_90, 20 SMs, CUDA 12.8"
accepts "bench --mode graph" bench $gpu $small --mode graph --json --ptx
says "bench --mode graph: mode" '"mode": "graph"'
holds "bench --mode graph: variant" grep -q '"variant": "fwd_[a-z0-9_]*@ptx"' stdout
holds "bench --mode graph: nothing else" [ "$(grep -c '"mode"' stdout)" -eq 1 ]
accepts "bench --mode eager" bench $gpu $small --mode eager --json --causal bottom-right
holds "bench --mode eager: host" grep -q '"host_us": [0-9]' stdout
accepts "bench --all-variants" bench $gpu $small --all-variants --mode eager
rows=$(grep -c ' eager ' stdout)
run plan $gpu $(echo "$small" | sed 's/--seconds.*//') --all
holds "bench --all-variants: a row for each" [ "$rows" -eq "$(grep -c '  yes;' stdout)" ]
refuses "bench: no variant applies" "head_dim = 65" bench $gpu --dim 65 --dtype fp16
# The kernel is of fp16, so that a table of fp32 holds nothing but refusals.
run bench $gpu --grid small --dtype fp32 --variant "$kernel"
holds "a grid of refusals: exit code" [ $code -eq 2 ]
holds "a grid of refusals: rows" [ "$(grep -c 'refused: ' stdout)" -eq 12 ]

accepts "attn" attn $files $gpu --verify --causal bottom-right
says "attn: verified" "40 of 40 rows"
mv o.npy o_gpu.npy
mv l.npy l_gpu.npy
accepts "attn on the CPU" attn $files --verify --causal bottom-right --variant cpu_tile_c
holds "attn: both of one size" [ "$(wc -c <o.npy)" -eq "$(wc -c <o_gpu.npy)" ]
accepts "attn through the PTX" attn $files $gpu --causal bottom-right --ptx
same "attn through the PTX: O" o.npy o_gpu.npy
same "attn through the PTX: LSE" l.npy l_gpu.npy
rm -f o.npy l.npy

# Options belong to the full families, each head dimension to one of the tiles.
run plan $gpu --dtype fp16 --all
dims="8 40 64"
if grep -q fwd_hopper_bias_fp16_d256_ stdout; then # it may have been built without
    dims="$dims 72 104 168 200 256"
fi
for dim in $dims; do
    accepts "plan: head_dim $dim" plan $gpu --dtype fp16 --dim $dim
    accepts "plan: head_dim $dim and an option" plan $gpu --dtype fp16 --dim $dim --alibi
    holds "plan: head_dim $dim and an option: kernel" grep -qE "fwd_hopper_(full|bias)_fp16_" stdout
done
accepts "attn with an option" attn $files $gpu --verify --alibi
says "attn with an option: verified" "40 of 40 rows"
npy q.npy f4 "1, 2, 20, 64" 1
npy k.npy f4 "1, 1, 24, 64" 2
npy v.npy f4 "1, 1, 24, 64" 3
rm -f o.npy l.npy
accepts "attn in fp32" attn $files $gpu --verify
says "attn in fp32: verified" "40 of 40 rows"

finish
