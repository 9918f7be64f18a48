#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# nvcc.sh FOLDER: installs nvcc, ptxas and fatbinary into FOLDER from the Python package index (100 MB,
# no root; NVIDIA's licence applies), for machines without the CUDA toolkit. CMake looks for it in
# build-nvcc/ (`make nvcc`).
#
# Invariant: exit code 0 iff FOLDER/nvidia/cu13/bin/nvcc answers.
set -eu
folder=$1
release=13.0
nvcc=$folder/nvidia/cu13/bin/nvcc

if ! "$nvcc" --version >/dev/null 2>&1; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$folder" \
        "nvidia-cuda-nvcc==$release.*" "nvidia-cuda-crt==$release.*" "nvidia-nvvm==$release.*" \
        "nvidia-cuda-runtime==$release.*"
fi
"$nvcc" --version | tail -n 1
