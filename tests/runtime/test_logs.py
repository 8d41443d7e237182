"""Log lines: durations are hours, minutes and seconds, rounded up."""

import pytest

from seq2seq.runtime.logs import format_duration


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0:00:00"),
        (0.2, "0:00:01"),
        (59.0000001, "0:00:59"),
        (59.5, "0:01:00"),
        (3723, "1:02:03"),
        (3600 * 30 + 59 * 60, "30:59:00"),
    ],
)
def test_a_duration_is_hours_minutes_and_seconds_rounded_up(seconds, text):
    assert format_duration(seconds) == text
