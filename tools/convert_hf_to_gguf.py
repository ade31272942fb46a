"""Writes a Hugging Face checkpoint as a GGUF file: the same as `specdec convert`.

python tools/convert_hf_to_gguf.py HF_DIR OUT.gguf --type q8_0
"""

from __future__ import annotations

import sys

from specdec_native.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "convert")
    main()
