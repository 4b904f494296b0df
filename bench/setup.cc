// SPDX-License-Identifier: Apache-2.0
// Set-up phases of a VM, on whatever /dev/kvm is here. Each result is labelled with the kind of
// KVM; nothing of a guest runs.
#include <benchmark/benchmark.h>

#include "bench/phases.h"

namespace
{

double seconds(uint64_t ns)
{
	return static_cast<double>(ns) * 1e-9;
}

// Time of one phase of a whole life; the others run but do not count.
void bench_phase(benchmark::State &state, uint64_t phases_times::*phase)
{
	phases_times times{};

	for (auto _ : state) {
		int ret = phases_once(static_cast<unsigned>(state.range(0)),
				      static_cast<unsigned>(state.range(1)), &times);

		if (ret) {
			state.SkipWithError("set-up failed");
			return;
		}
		state.SetIterationTime(seconds(times.*phase));
	}
	state.SetLabel(phases_kvm_kind());
}

void bench_setup(benchmark::State &state)
{
	phases_times times{};

	for (auto _ : state) {
		if (phases_once(static_cast<unsigned>(state.range(0)),
				static_cast<unsigned>(state.range(1)), &times)) {
			state.SkipWithError("set-up failed");
			return;
		}
		state.SetIterationTime(
			seconds(times.create_ns + times.vcpus_ns + times.devices_ns));
	}
	state.SetLabel(phases_kvm_kind());
}

void bench_wrong_order(benchmark::State &state)
{
	uint64_t ns = 0;

	for (auto _ : state) {
		if (phases_wrong_order(static_cast<unsigned>(state.range(0)), &ns)) {
			state.SkipWithError("set-up failed");
			return;
		}
		state.SetIterationTime(seconds(ns));
	}
	state.SetLabel(phases_kvm_kind());
}

void bench_cpuid(benchmark::State &state)
{
	for (auto _ : state) {
		if (phases_cpuid()) {
			state.SkipWithError("KVM_GET_SUPPORTED_CPUID failed");
			return;
		}
	}
	state.SetLabel(phases_kvm_kind());
}

} // namespace

BENCHMARK(bench_setup)
	->Name("setup/all")
	->Args({1, 512})
	->Args({2, 512})
	->Args({8, 4096})
	->UseManualTime()
	->Unit(benchmark::kMicrosecond)
	->Iterations(100);
BENCHMARK_CAPTURE(bench_phase, create, &phases_times::create_ns)
	->Args({1, 512})
	->UseManualTime()
	->Unit(benchmark::kMicrosecond)
	->Iterations(100);
BENCHMARK_CAPTURE(bench_phase, vcpus, &phases_times::vcpus_ns)
	->Args({1, 512})
	->UseManualTime()
	->Unit(benchmark::kMicrosecond)
	->Iterations(100);
BENCHMARK_CAPTURE(bench_phase, devices, &phases_times::devices_ns)
	->Args({1, 512})
	->UseManualTime()
	->Unit(benchmark::kMicrosecond)
	->Iterations(100);
BENCHMARK_CAPTURE(bench_phase, destroy, &phases_times::destroy_ns)
	->Args({1, 512})
	->UseManualTime()
	->Unit(benchmark::kMicrosecond)
	->Iterations(100);
BENCHMARK(bench_wrong_order)
	->Name("setup/irqchip-before-memslot")
	->Arg(512)
	->UseManualTime()
	->Unit(benchmark::kMicrosecond)
	->Iterations(100);
BENCHMARK(bench_cpuid)->Name("setup/supported-cpuid")->Unit(benchmark::kMicrosecond);

BENCHMARK_MAIN();
