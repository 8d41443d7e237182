"""The main job with default settings: train.py, then decode.py. Takes minutes: pytest -m slow."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "korean_english.py"


@pytest.mark.slow
def test_the_main_job_translates_unseen_sentences(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)  # the settings of users
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    run = tmp_path / "run"
    trained = subprocess.run(
        [sys.executable, ROOT / "train.py", f"--config={CONFIG}", f"--workdir={run}"],
        check=True,
        capture_output=True,
        text=True,
    )
    exact = float(re.search(r"held-out exact match ([\d.]+) %", trained.stdout)[1])
    assert exact >= 95.0
    decoded = subprocess.run(
        [sys.executable, ROOT / "decode.py", f"--workdir={run}"],
        check=True,
        capture_output=True,
        text=True,
        input="나는 밥을 먹었다.\n\n밥이 나를 먹었다.\n",
    )
    assert decoded.stdout == "I ate rice.\n\nRice ate me.\n"
