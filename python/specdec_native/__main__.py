"""``python -m specdec_native`` is ``specdec``."""

from __future__ import annotations

from specdec_native.cli import main

if __name__ == "__main__":
    main()
