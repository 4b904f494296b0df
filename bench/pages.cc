// SPDX-License-Identifier: Apache-2.0
// Costs a page: faults, populating, UFFDIO_COPY, pre-fault. Labelled with the kind of KVM; ns_page
// is the figure, the time is that of 4,096 pages.
#include <benchmark/benchmark.h>

#include <cerrno>
#include <string>

#include "bench/page_cost.h"
#include "bench/phases.h"

namespace
{

void bench_page(benchmark::State &state, page_cost way)
{
	double sum_ns = 0, n = 0;

	for (auto _ : state) {
		uint64_t ns = 0;
		int ret = page_cost_once(way, &ns);

		if (ret) {
			state.SkipWithError(ret == -EOPNOTSUPP ? "not on this kernel or KVM"
							       : "failed");
			return;
		}
		state.SetIterationTime(static_cast<double>(ns) * 1e-9);
		sum_ns += static_cast<double>(ns);
		n++;
	}
	if (n > 0)
		state.counters["ns_page"] = sum_ns / n / PAGE_COST_PAGES;
	state.SetLabel(phases_kvm_kind());
}

} // namespace

int main(int argc, char **argv)
{
	for (int way = 0; way < PAGE_COSTS; way++) {
		const page_cost cost = static_cast<page_cost>(way);
		const std::string name = std::string("page/") + page_cost_name(cost);

		benchmark::RegisterBenchmark(name.c_str(), bench_page, cost)
			->UseManualTime()
			->Unit(benchmark::kMicrosecond)
			->Iterations(1)
			->Repetitions(9);
	}
	benchmark::Initialize(&argc, argv);
	if (benchmark::ReportUnrecognizedArguments(argc, argv))
		return 1;
	benchmark::RunSpecifiedBenchmarks();
	return 0;
}
