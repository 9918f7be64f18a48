#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# make.sh FOLDER: FOLDER/site by build.py, with mkdocs-material in a virtual environment,
# FOLDER/venv, which is kept.
set -eu
cd "$(dirname "$0")/../.."
python=$1/venv/bin/python
if ! "$python" -c 'import material' 2>/dev/null; then
    python3 -m venv --clear "$1/venv"
    "$python" -m pip install -q --disable-pip-version-check 'mkdocs-material>=9.5,<10'
fi
"$python" docs/site/build.py "$1"
