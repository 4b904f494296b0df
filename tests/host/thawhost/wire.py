# SPDX-License-Identifier: Apache-2.0
"""Frames between the client and the agent of the test host: one TCP connection a command.

The agent speaks first: GREETING (8 bytes) and a nonce of 16 bytes. The client answers with the
HMAC-SHA256 of the nonce under the host's token, 32 bytes, so the token itself never travels. From
then on both sides send frames: a little-endian header {u32 length of the payload, u8 type}, then
the payload. The connection is never half closed: an end of file means that the peer is gone.

The client's first frame is START (run a command), STATUS or POWEROFF. Streams have credit, each by
itself: a side sends at most the bytes it was granted, and the receiver grants more once it has
handed the bytes on. So a stalled stream never holds up signals, heartbeats or the other streams,
and neither side buffers more than WINDOW bytes a stream.
"""

import enum
import hashlib
import hmac
import struct
from collections.abc import Iterator

AGENT_PORT = 1022
GREETING = b"THAWHST1"
NONCE_BYTES = 16
PROOF_BYTES = 32
HEADER = struct.Struct("<IB")
MAX_PAYLOAD_BYTES = 1 << 20
CHUNK_BYTES = 128 << 10
WINDOW = 1 << 20
PING_INTERVAL_S = 5.0
CREDIT = struct.Struct("<BI")
WINDOW_SIZE = struct.Struct("<HH")
SIGNAL = struct.Struct("<I")
EXIT = struct.Struct("<BI")


class Frame(enum.IntEnum):
    """Frame types; C: sent by the client, A: by the agent."""

    START = 1  # C: JSON {argv, env, cwd, pty, split_stderr, rows, columns, now}
    STATUS = 2  # C: empty; A: JSON {sessions, uptime_s, digest}
    POWEROFF = 3  # C: empty; A: empty, once everything is on disk and the power goes
    DATA_IN = 4  # C: bytes for stdin
    EOF_IN = 5  # C: stdin ended
    DATA_OUT = 6  # A: bytes of stdout (or of the pty)
    DATA_ERR = 7  # A: bytes of stderr
    GRANT = 8  # C, A: CREDIT {u8 Stream, u32 bytes}: that many more may be sent
    CLOSED = 9  # C, A: u8 Stream: its reader is gone, send no more
    SIGNAL = 10  # C: SIGNAL {u32 number}
    RESIZE = 11  # C: WINDOW_SIZE {u16 rows, u16 columns}
    PING = 12  # A: empty, every PING_INTERVAL_S
    EXIT = 13  # A: EXIT {u8 ExitKind, u32 value}: the last frame
    REFUSED = 14  # A: UTF-8 reason: the agent can't do it


class Stream(enum.IntEnum):
    IN = 0
    OUT = 1
    ERR = 2


class ExitKind(enum.IntEnum):
    CODE = 0
    SIGNAL = 1


class WireError(Exception):
    """The peer does not speak this protocol."""


def prove(token: bytes, nonce: bytes) -> bytes:
    """The client's answer to NONCE."""
    return hmac.new(token, nonce, hashlib.sha256).digest()


def pack(kind: Frame, payload: bytes | memoryview = b"") -> bytes:
    return HEADER.pack(len(payload), kind) + payload


def encode_text(value: bytes) -> str:
    """An argument or variable as JSON text that gives the same bytes back."""
    return value.decode("utf-8", "surrogateescape")


def decode_text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Frame, bytes]]:
        """Yields the frames completed by DATA; raises WireError on a frame that can't be."""
        self._buffer += data
        while len(self._buffer) >= HEADER.size:
            length, kind = HEADER.unpack_from(self._buffer)
            if length > MAX_PAYLOAD_BYTES:
                raise WireError(f"frame of {length} bytes")
            if len(self._buffer) < HEADER.size + length:
                return
            payload = bytes(memoryview(self._buffer)[HEADER.size : HEADER.size + length])
            del self._buffer[: HEADER.size + length]
            try:
                frame = Frame(kind)
            except ValueError:
                raise WireError(f"frame of unknown type {kind}") from None
            yield frame, payload
