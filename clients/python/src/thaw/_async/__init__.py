# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio; the blocking one (_sync) is made of it by clients/python/unasync."""
