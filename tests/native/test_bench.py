# SPDX-License-Identifier: Apache-2.0
"""The native benchmarks: what they say of the machine they ran on."""

import json
import os
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent.parent
KVM = Path("/dev/kvm")


@pytest.mark.skipif(not os.access(KVM, os.R_OK | os.W_OK), reason=f"{KVM} does not open here")
def test_results_carry_the_kind_of_kvm() -> None:
    program = "build/release/bench-setup"
    subprocess.run(["make", "-s", program], cwd=TOP, check=True)
    options = ["--benchmark_filter=cpuid", "--benchmark_min_time=0.01", "--benchmark_format=json"]
    out = subprocess.run([program, *options], cwd=TOP, check=True, capture_output=True).stdout
    labels = {one["label"] for one in json.loads(out)["benchmarks"]}
    doctor = subprocess.run(
        ["build/release/thaw", "doctor", "--json"], cwd=TOP, capture_output=True
    )
    assert labels == {json.loads(doctor.stdout)["kvm"]}
