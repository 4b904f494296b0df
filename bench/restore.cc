// SPDX-License-Identifier: Apache-2.0
// Each restore strategy on a made-up snapshot (bench/made.h), page cache hot and cold: the restore
// with what the strategy does of the hot set, and the hot pages touched afterwards. Labelled with
// the kind of KVM; nothing of a guest runs.
#include <benchmark/benchmark.h>

#include <string>

#include "bench/made.h"
#include "bench/phases.h"

namespace
{

made *snapshot;

void bench_strategy(benchmark::State &state, const char *strategy, bool cold, unsigned threads)
{
	const made_how how = {strategy, cold, 0, 1, threads};
	double restore_ms = 0, touch_ms = 0, faults = 0, read_mib = 0, hot_mib = 0, n = 0;

	for (auto _ : state) {
		made_times times{};

		if (!snapshot || made_clone(snapshot, &how, &times)) {
			state.SkipWithError("can't be had here");
			return;
		}
		state.SetIterationTime(static_cast<double>(times.restore_ns + times.touch_ns) *
				       1e-9);
		restore_ms += static_cast<double>(times.restore_ns) * 1e-6;
		touch_ms += static_cast<double>(times.touch_ns) * 1e-6;
		faults += static_cast<double>(times.faults);
		read_mib += static_cast<double>(times.bytes_read) / (1 << 20);
		hot_mib = static_cast<double>(times.hot_bytes) / (1 << 20);
		n++;
	}
	if (n > 0) {
		state.counters["restore_ms"] = restore_ms / n;
		state.counters["touch_ms"] = touch_ms / n;
		state.counters["touch_faults"] = faults / n;
		state.counters["read_mib"] = read_mib / n;
		state.counters["hot_mib"] = hot_mib;
	}
	state.SetLabel(phases_kvm_kind());
}

void add(const char *strategy, bool cold, unsigned threads)
{
	std::string name = std::string("restore/") + strategy + (cold ? "/cold" : "/hot");

	if (threads)
		name += "/threads:" + std::to_string(threads);
	benchmark::RegisterBenchmark(name.c_str(), bench_strategy, strategy, cold, threads)
		->UseManualTime()
		->Unit(benchmark::kMillisecond)
		->Iterations(1)
		->Repetitions(9)
		->ReportAggregatesOnly(false);
}

} // namespace

int main(int argc, char **argv)
{
	const made_shape shape = {1, 256};

	for (const char *const *name = made_strategies(); *name; name++) {
		add(*name, false, 0);
		add(*name, true, 0);
	}
	add("ws", false, 2);
	benchmark::Initialize(&argc, argv);
	if (benchmark::ReportUnrecognizedArguments(argc, argv))
		return 1;
	if (made_new(&shape, &snapshot)) {
		made_free(snapshot);
		snapshot = nullptr;
	}
	benchmark::RunSpecifiedBenchmarks();
	made_free(snapshot);
	return 0;
}
