# SPDX-License-Identifier: Apache-2.0
"""The restore lab; bench/lab/README.md tells what is where."""
