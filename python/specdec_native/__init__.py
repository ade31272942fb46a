"""Speculative decoding whose output is identical to ordinary decoding.

>>> import specdec_native as sd
>>> with sd.Generator("target.gguf", draft="draft.gguf") as gen:  # doctest: +SKIP
...     print(gen.generate("Once upon a time", max_tokens=50, temperature=0).text)
"""

from __future__ import annotations

from specdec_native import _core
from specdec_native.convert import ConvertResult, convert
from specdec_native.drafters import (
    DraftModel,
    EagleDraft,
    LayerSkipDraft,
    MedusaDraft,
    NgramDraft,
    SuffixDraft,
)
from specdec_native.errors import (
    BackendUnavailableError,
    BusyError,
    ContextFullError,
    ConvertError,
    DeviceError,
    Error,
    GgufError,
    IncompatibleModelsError,
    InternalError,
    OutOfMemoryError,
    OutputError,
    PullError,
    TemplateError,
    TokenizerError,
)
from specdec_native.generator import Generator
from specdec_native.info import build_info, cpu_info
from specdec_native.inspection import estimate_memory, inspect
from specdec_native.layer_search import LayerSearch, search_layers
from specdec_native.models import pull
from specdec_native.quantization import QuantizedTensor, QuantizeResult, quantize
from specdec_native.sampling import SamplingParams
from specdec_native.stats import Stats
from specdec_native.stream import Chunk, Completion, Stream, TokenLogprob
from specdec_native.text import Tokenizer

__version__: str = _core.__version__

__all__ = [
    "BackendUnavailableError",
    "BusyError",
    "Chunk",
    "Completion",
    "ContextFullError",
    "ConvertError",
    "ConvertResult",
    "DeviceError",
    "DraftModel",
    "EagleDraft",
    "Error",
    "Generator",
    "GgufError",
    "IncompatibleModelsError",
    "InternalError",
    "LayerSearch",
    "LayerSkipDraft",
    "MedusaDraft",
    "NgramDraft",
    "OutOfMemoryError",
    "OutputError",
    "PullError",
    "QuantizeResult",
    "QuantizedTensor",
    "SamplingParams",
    "Stats",
    "Stream",
    "SuffixDraft",
    "TemplateError",
    "TokenLogprob",
    "Tokenizer",
    "TokenizerError",
    "__version__",
    "build_info",
    "convert",
    "cpu_info",
    "estimate_memory",
    "inspect",
    "pull",
    "quantize",
    "search_layers",
]
