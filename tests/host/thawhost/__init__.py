# SPDX-License-Identifier: Apache-2.0
"""The emulated test host: image, machine, client and the frames it speaks with the agent."""
