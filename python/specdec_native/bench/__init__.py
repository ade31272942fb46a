"""Measurements: of passes, against another program, and of drafters.

`passes` times passes of a model beside the limits of the machine, `compare` puts a given
``llama-bench`` beside them, `generating` compares drafters with plain decoding. Everything that is
compared is run in turns within one run, since a machine is never equally busy for two minutes.
"""
