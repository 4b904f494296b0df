# SPDX-License-Identifier: Apache-2.0
"""Makes the guest folder: kernel, root image, modules. `../build` is the command."""
