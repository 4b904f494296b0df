# SPDX-License-Identifier: Apache-2.0
"""Makes Debian trees, from the mirror this machine uses anyway."""

import os
import shutil
import subprocess
from pathlib import Path

from .common import BuildError, run

SUITE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NOT_INSTALLED = (
    "/usr/share/doc/*",
    "/usr/share/info/*",
    "/usr/share/lintian/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
)


def output_of(command: list[str]) -> str:
    """What COMMAND prints; nothing if it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine_sources() -> list[tuple[str, str, str, str]]:
    """(origin, label, release, uri) of each of this machine's own apt sources."""
    text = output_of(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(RELEASE)|$(REPO_URI)"]
    )
    rows = [tuple(line.split("|")) for line in text.splitlines()]
    return [(row[0], row[1], row[2], row[3]) for row in rows if len(row) == 4]


def machine_is_debian() -> bool:
    try:
        return "ID=debian" in Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return False


def source_line(uri: str, suite: str) -> str:
    option = f" [signed-by={KEYRING}]" if KEYRING.exists() else ""
    return f"deb{option} {uri} {suite} main"


def find_sources() -> list[str]:
    """Apt source lines for mmdebstrap: THAW_MIRROR, else this machine's own, else its default.

    The machine's own security archive comes along, so that the guest has what the host has.
    """
    chosen = os.environ.get("THAW_MIRROR")
    if chosen:
        return [source_line(chosen, SUITE)]
    rows = machine_sources()
    main = [uri for origin, label, _, uri in rows if (origin, label) == ("Debian", "Debian")]
    if not main and machine_is_debian():
        # No Origin is known before the first `apt-get update`; the main archive is then the
        # source that has a plain suite name.
        main = [uri for origin, _, release, uri in rows if not origin and "-" not in release]
    if not main:
        return []
    security = [uri for origin, label, _, uri in rows if label == "Debian-Security"]
    lines = [source_line(main[0], SUITE)]
    if security:
        lines.append(source_line(security[0], f"{SUITE}-security"))
    return lines


def proxy_options() -> list[str]:
    """Hands this machine's apt proxy on, if it has one."""
    options = []
    for key in ("Acquire::http::Proxy", "Acquire::https::Proxy"):
        for line in output_of(["apt-config", "dump", "--format", "%f=%v%n", key]).splitlines():
            name, _, value = line.partition("=")
            if name == key and value:
                options.append(f'--aptopt={key} "{value}"')
    return options


def make_tree(tree: Path, packages: list[str], log: Path) -> None:
    """A tree of Debian 13's essential packages, apt and PACKAGES."""
    if not shutil.which("mmdebstrap"):
        raise BuildError("mmdebstrap is not installed; run: make deps")
    command = ["mmdebstrap", "--variant=apt", "--mode=root", "--format=directory"]
    command += ["--architectures=amd64", f"--include={','.join(packages)}"]
    command += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    command += proxy_options()
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in NOT_INSTALLED]
    command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    command += [SUITE, str(tree), *find_sources()]
    # A kernel's post-installation script would make an initrd that nobody reads.
    run(command, log, dict(os.environ, INITRD="No", LC_ALL="C.UTF-8"))
    tree.chmod(0o755)
