#!/usr/bin/env bash
# Builds for the GPU at hand, tests the kernels and the engine on it, and times passes; all options
# are those of gpu_check.py, which says more. Needs nvcc, CMake, a Python with the packages
# below, and no network. Ends within 8 minutes; safe to run again.
#
#   tools/gpu_check.sh [--out gpu_check.json] [--model SmolLM2-135M-Instruct.Q4_1.gguf]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-}
packages="pybind11, numpy, gguf, safetensors, ml_dtypes, tokenizers, jinja2, pytest"
if [ -z "$python" ]; then
  for candidate in "${VIRTUAL_ENV:-/nonexistent}/bin/python" .venv/bin/python python3 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c "import $packages" 2>/dev/null; then
      python=$candidate
      break
    fi
  done
fi
[ -n "$python" ] || { echo "no Python with $packages; install them or set PYTHON" >&2; exit 2; }
exec "$python" tools/gpu_check.py "$@"
