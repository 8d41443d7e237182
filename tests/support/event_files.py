"""Event files as TensorBoard reads them, by the protocol buffers of tensorboardX."""

import struct

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c


def events(path):
    """The events of a file up to a partial one, which a kill leaves."""
    raw, whole = path.read_bytes(), []
    while len(raw) >= 8:
        end = 12 + struct.unpack("<Q", raw[:8])[0]
        if len(raw) < end + 4:
            break
        for data, checksum in ((raw[:8], raw[8:12]), (raw[12:end], raw[end : end + 4])):
            assert struct.unpack("<I", checksum)[0] == masked_crc32c(data)
        whole.append(Event.FromString(raw[12:end]))
        raw = raw[end + 4 :]
    return whole


def tensorboard_points(directory):
    """Tag → step → value as TensorBoard shows them: a start at a step drops all later points."""
    points = {}
    for path in sorted(directory.iterdir()):
        first, *others = events(path)
        assert first.file_version == "brain.Event:2"  # without it a start drops nothing
        for event in others:
            if event.session_log.status == SessionLog.START:
                points = {
                    tag: {step: value for step, value in values.items() if step < event.step}
                    for tag, values in points.items()
                }
            for value in event.summary.value:
                points.setdefault(value.tag, {})[event.step] = value.simple_value
    return points
