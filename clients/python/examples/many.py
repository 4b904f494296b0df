#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many sandboxes at once, with asyncio: the same program over several inputs.

python3 many.py [--template NAME] [--count 4]
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from thaw import AsyncClient, AsyncSandbox


async def square(client: AsyncClient, template: str | None, number: int) -> int:
    async with await AsyncSandbox.create(template, client=client) as sandbox:
        script = "read n; echo $((n * n))"
        result = await sandbox.commands.run(["sh", "-c", script], stdin=f"{number}\n", check=True)
        return int(result.stdout)


async def run(template: str | None, count: int) -> list[int]:
    async with AsyncClient() as client:
        return await asyncio.gather(*(square(client, template, n) for n in range(count)))


def main() -> int:
    parser = argparse.ArgumentParser(description="The same program in many sandboxes.")
    parser.add_argument("--template", help="what they start from (default: thawd's)")
    parser.add_argument("--count", type=int, default=4)
    options = parser.parse_args()
    print(*asyncio.run(run(options.template, options.count)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
