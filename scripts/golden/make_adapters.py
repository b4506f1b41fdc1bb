"""Write tests/data/golden/adapters.npz: what PEFT makes of the adapters that the tests write.

PEFT on transformers and PyTorch, float32 on the CPU, eager attention, over the tiny models and the cases of
tests/tiny_adapters.py. Run it in a virtual environment of its own, as make_logits.py says, with peft==0.21.2 added:

    python scripts/golden/make_adapters.py

README.md beside this script describes the file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import peft
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tiny_adapters import CASES, write_case  # noqa: E402
from tiny_models import tiny_prompt, write_tiny_model  # noqa: E402


def main() -> None:
    torch.set_num_threads(2)
    arrays: dict[str, np.ndarray] = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            base = transformers.AutoModelForCausalLM.from_pretrained(
                write_tiny_model(case.variant, Path(folder, "base")), dtype=torch.float32, attn_implementation="eager"
            )
            model = peft.PeftModel.from_pretrained(base, write_case(name, Path(folder, "adapter"))).eval()
            layers = {
                path.removeprefix("base_model.model."): layer
                for path, layer in model.named_modules()
                if isinstance(layer, peft.tuners.lora.Linear)
            }
            ids = torch.tensor(tiny_prompt(case.variant).astype(np.int64))[None]
            with torch.no_grad():
                arrays[f"{name}.logits"] = model(ids).logits[0].numpy()
            arrays[f"{name}.modules"] = np.array(list(layers))
            arrays[f"{name}.ranks"] = np.array([layer.r["default"] for layer in layers.values()], np.int32)
            arrays[f"{name}.scales"] = np.array([layer.scaling["default"] for layer in layers.values()])
            print(name, len(layers), "layers")
    versions = f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
    np.savez_compressed(ROOT / "tests" / "data" / "golden" / "adapters.npz", versions=np.array(versions), **arrays)


if __name__ == "__main__":
    main()
