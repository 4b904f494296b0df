// SPDX-License-Identifier: Apache-2.0
// Set-up phases of a VM, on whatever /dev/kvm is here. Each result is labelled with the kind of
// KVM; nothing of a guest runs.
#include <benchmark/benchmark.h>

#include "bench/made.h"
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

// The snapshot of one shape; benchmarks come back for it with every repetition.
made *snapshot_of(const made_shape &shape)
{
	static made_shape kept_shape;
	static made *kept;

	if (kept && kept_shape.nvcpus == shape.nvcpus && kept_shape.ram_mib == shape.ram_mib)
		return kept;
	made_free(kept);
	kept = nullptr;
	kept_shape = shape;
	if (shape.nvcpus && made_new(&shape, &kept)) {
		made_free(kept);
		kept = nullptr;
	}
	return kept;
}

// Clock c1 of a clone: first KVM ioctl to vCPU state set, of a restored snapshot with all its
// devices, in a process of its own. What the hot set needs is no part of it.
void bench_c1(benchmark::State &state)
{
	made *snapshot = snapshot_of(
		{static_cast<unsigned>(state.range(0)), static_cast<unsigned>(state.range(1))});
	const made_how how = {"mmap", 0, 1, 0, 0};
	made_times times{};

	for (auto _ : state) {
		if (!snapshot || made_clone(snapshot, &how, &times)) {
			state.SkipWithError("no snapshot could be made or restored");
			return;
		}
		state.SetIterationTime(seconds(times.c1_ns));
	}
	state.SetLabel(phases_kvm_kind());
}

} // namespace

// One clone a repetition, so that the JSON file holds every sample and a median of them.
BENCHMARK(bench_c1)
	->Name("c1/restore")
	->Args({1, 256})
	->Args({1, 512})
	->Args({2, 1024})
	->UseManualTime()
	->Unit(benchmark::kMicrosecond)
	->Iterations(1)
	->Repetitions(60);
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

int main(int argc, char **argv)
{
	benchmark::Initialize(&argc, argv);
	if (benchmark::ReportUnrecognizedArguments(argc, argv))
		return 1;
	benchmark::RunSpecifiedBenchmarks();
	snapshot_of({});
	return 0;
}
