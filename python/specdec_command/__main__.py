"""``python -m specdec_command`` is ``specdec``."""

from __future__ import annotations

from specdec_command import main

if __name__ == "__main__":
    main()
