"""Directories of LoRA adapters as peft writes them, with random matrices."""

import json
import os

import numpy as np
from safetensors.numpy import load_file, save_file

RANK, ALPHA = 3, 5
FIELDS = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "task_type": None,
          "use_rslora": False, "use_dora": False, "megatron_core": "megatron.core",
          "modules_to_save": None, "target_modules": ["q", "wi", "q_proj", "fc1"]}  # fmt: skip


def matrix_names(module):
    return [f"base_model.model.{module}.lora_{part}.weight" for part in "AB"]


def write_adapter(path, base, modules, ranks=(RANK, RANK), **fields):
    """An adapter of random matrices; returns them by module, as pairs (A, B)."""
    path.mkdir(exist_ok=True)
    weights, choose, matrices = load_file(base / "model.safetensors"), np.random.default_rng(1), {}
    for module, rank in zip(modules, ranks, strict=True):
        outputs, inputs = weights[f"{module}.weight"].shape
        shapes = (rank, inputs), (outputs, rank)
        matrices[module] = [choose.normal(0, 1, shape).astype(np.float32) for shape in shapes]
    tensors = {
        name: matrix
        for module in modules
        for name, matrix in zip(matrix_names(module), matrices[module], strict=True)
    }
    save_file(tensors, path / "adapter_model.safetensors")
    content = FIELDS | {"base_model_name_or_path": os.path.relpath(base, path)} | fields
    (path / "adapter_config.json").write_text(json.dumps(content))
    return matrices
