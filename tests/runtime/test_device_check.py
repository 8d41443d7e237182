"""The check of known results on a device: right ones pass, a wrong one ends the command."""

from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest

from seq2seq.runtime import device_check
from seq2seq.runtime.device_check import EXPECTED, check_accelerators, check_device
from seq2seq.runtime.errors import INTERNAL, UserError


def test_right_results_pass_and_each_wrong_one_names_jax_driver_and_device(monkeypatch):
    (device, *_) = jax.local_devices()
    check_device(device)
    for name in EXPECTED:
        for factor in (0.0, np.nan):
            wrong = EXPECTED | {name: EXPECTED[name] * factor}
            monkeypatch.setattr(device_check, "known_results", lambda *_, wrong=wrong: wrong)
            message = rf"computes {name} wrongly with jax {jax.__version__} \(.+\): expected .*"
            with pytest.raises(UserError, match=f"^{device.device_kind} {message}") as refused:
                check_device(device)
            assert refused.value.code == INTERNAL


def test_each_accelerator_is_checked_and_no_cpu():
    devices = [SimpleNamespace(platform=name) for name in ("cpu", "gpu", "tpu", "gpu")]
    with mock.patch.object(jax, "local_devices", lambda: devices):
        with mock.patch.object(device_check, "check_device") as check:
            check_accelerators()
    assert [call.args[0].platform for call in check.call_args_list] == ["gpu", "tpu", "gpu"]
