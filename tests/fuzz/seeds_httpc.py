#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the seeds of fuzz_httpc: a byte of flags (1: upgrade asked for, 2: HEAD), then answers."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus/httpc"

SEEDS = {
    "length": b"\0HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: b\r\n\r\nhello"
    b"HTTP/1.1 204 No\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "chunked": b"\4HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    b"a;x=y\r\n 123456789\r\n0\r\nTrailer: x\r\n\r\n",
    "to-end": b"\0HTTP/1.0 200 OK\r\n\r\nall of it",
    "upgrade": b"\1HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 S\r\nUpgrade: x\r\n\r\nnew",
    "head": b"\2HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\nHTTP/1.1 304 N\r\nETag: x\r\n\r\n",
    "both": b"\0HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
}

if __name__ == "__main__":
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, data in SEEDS.items():
        (CORPUS / name).write_bytes(data)
