"""Text in and out: vocabulary, tokeniser, incremental detokeniser and stop strings."""

from __future__ import annotations

from specdec_native.text.detokenizer import IncrementalDetokenizer
from specdec_native.text.stop_matcher import StopMatcher
from specdec_native.text.tokenizer import Tokenizer
from specdec_native.text.vocabulary import TokenType, Vocabulary

__all__ = ["IncrementalDetokenizer", "StopMatcher", "TokenType", "Tokenizer", "Vocabulary"]
