"""Environments in which Python can import an extension that was built with a sanitizer."""

from __future__ import annotations

import os
import subprocess

__all__ = ["SETTINGS", "sanitizer_environment"]

SETTINGS = {
    "asan": {
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # the interpreter itself leaks
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    },
    "tsan": {
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
        # Only the kernels are watched: the host's thread pool would look like a race.
        "SPECDEC_TEST_THREADS": "1",
    },
}


def sanitizer_environment(name: str) -> dict[str, str]:
    """The variables for `asan` (with UBSan) or `tsan`, the runtime preloaded.

    libstdc++ too: AddressSanitizer looks up __cxa_throw at its start, before the module is there.
    """
    compiler = os.environ.get("CXX", "g++")
    preloaded = [
        subprocess.run(
            [compiler, f"-print-file-name={library}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for library in (f"lib{name}.so", "libstdc++.so")
    ]
    return {"LD_PRELOAD": " ".join(preloaded), **SETTINGS[name]}
