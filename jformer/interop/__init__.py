"""Runs in the formats of other programs: CTranslate2, transformers, safetensors and StableHLO."""
