"""The event file of one start of a training: the points that TensorBoard shows.

A record is [length, checksum of the length, event, checksum of the event] (TFRecord). An event is a
protocol buffer: Event {double wall_time = 1; int64 step = 2; string file_version = 3;
Summary summary = 5; SessionLog session_log = 7}. It is written without a library: the writers of
others have a thread and a queue, and a thread that ends with an error blocks the training.
"""

import platform
import struct
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from seq2seq.storage.writes import append

VARINT, LENGTH = 0, 2  # wire types of protocol buffers
POLYNOMIAL = 0x82F63B78  # CRC-32C, bits reversed


class EventFile:
    """Points of the steps after `step`; TensorBoard drops those of earlier starts."""

    def __init__(self, directory: Path, step: int):
        now = time.time()
        self._path = directory / f"events.out.tfevents.{int(now):010d}.{platform.node()}"
        start = field(7, field(1, 1))  # SessionLog {SessionStatus status = 1}, START = 1
        self._unwritten = event(now, step + 1, field(3, b"brain.Event:2"))
        self._unwritten += event(now, step + 1, start)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a point for each metric. OSError if that fails: then all of them are lost."""
        # Summary {repeated Value value = 1}, Value {string tag = 1; float simple_value = 2}
        with np.errstate(over="ignore"):  # a value above the range of float32 becomes inf
            values = [
                field(1, name.encode()) + b"\x15" + np.array(value, "<f4").tobytes()
                for name, value in metrics.items()
            ]
        summary = b"".join(field(1, value) for value in values)
        self._path.parent.mkdir(exist_ok=True)
        append(self._path, self._unwritten + event(time.time(), step, field(5, summary)))
        self._unwritten = b""


def event(seconds: float, step: int, content: bytes) -> bytes:
    """The record of an event with this content."""
    data = b"\x09" + struct.pack("<d", seconds) + field(2, step) + content
    size = struct.pack("<Q", len(data))
    return size + checksum(size) + data + checksum(data)


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: an integer, or text or another message."""
    if isinstance(value, int):
        return varint(number << 3 | VARINT) + varint(value)
    return varint(number << 3 | LENGTH) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """An integer ≥ 0 in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def checksum(data: bytes) -> bytes:
    """The masked CRC-32C of TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ POLYNOMIAL * (crc & 1)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
