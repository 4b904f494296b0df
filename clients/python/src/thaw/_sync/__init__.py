# SPDX-License-Identifier: Apache-2.0
"""The blocking client. All but _io.py is made of _async by clients/python/unasync."""
