// Benchmarks the layout algebra by cluster size: a 405B model (126 layers, hidden 16384) on 64 to 100,000
// devices, changing from pp 2k to pp k, tensor parallel 8, with the optimizer state sharded or replicated
// over data-parallel ranks.
//
//   bench_layout            the tables, one core, best of three
//
// Goals (docs/understand/architecture.md): one rank's share at 100,000 devices in 50 ms, the whole diff at
// 16,384 devices in 2 s.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "base/text.h"
#include "bench/llama_405b.h"
#include "layout/assign.h"
#include "layout/change.h"
#include "layout/diff.h"
#include "layout/layout.h"
#include "layout/sync.h"
#include "layout/verify.h"

namespace optimus {
namespace {

// Milliseconds; the best of `times` runs.
double measure(int times, const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

void bench_change(const ClusterSize& a, const ClusterSize& b, TextTable& table) {
  const Layout from = llama_405b(a), to = llama_405b(b);
  const int devices = a.pp * a.dp * kTp;
  const Rank rank{devices / 2 + 3};
  const DiffOptions options{.topology = nodes_and_racks(devices), .reserve = Bytes(std::int64_t{8} << 30)};
  std::vector<std::string> row{with_commas(devices) + " " + a.text() + " -> " + b.text()};
  const auto add = [&](double ms) { row.push_back(fmt::format("{:.1f}", ms)); };
  add(measure(3, [&] { boxes_of(to, RankIndex(to), rank); }));
  add(measure(3, [&] { LayoutChange(from, to, options); }));
  const LayoutChange change(from, to, options);
  const auto order = order_waves(change);
  if (!order) throw UserError("{}", order.error().why);
  add(measure(3, [&] { (void)order_waves(change); }));
  RankShare share;
  add(measure(3, [&] { share = diff_for(change, *order, rank).value(); }));
  std::size_t operations = 0;
  for (const auto& wave : share.waves) operations += wave.operations.size();
  row.push_back(with_commas(static_cast<std::int64_t>(operations)));
  add(measure(3, [&] {
    value_or_throw(verify_share(from, change.from_index, to, change.to_index, share, options));
  }));
  if (devices <= 16384 && (!a.is_sharded || b.is_sharded)) {
    TransferPlan plan;
    add(measure(3, [&] { plan = diff(from, to, options).value(); }));
    row.push_back(with_commas(static_cast<std::int64_t>(plan.transfers.size())));
    row.push_back(fmt::format("{:.3f}", plan.moved / plan.lower_bound));
    row.push_back(fmt::format("{:.2f}", plan.max_sent / plan.max_received));
    add(measure(1, [&] { value_or_throw(verify(from, to, plan, options)); }));
  } else {
    row.insert(row.end(), 5, "-");
  }
  table.row(std::move(row));
}

void bench_sync_and_assign(const ClusterSize& a, const ClusterSize& b, TextTable& table) {
  const Layout from = llama_405b(a), to = llama_405b(b);
  std::vector<std::string> row{with_commas(a.pp * a.dp * kTp) + " " + a.text() + " -> " + b.text()};
  SyncPlan plan;
  row.push_back(fmt::format("{:.1f}", measure(3, [&] { plan = sync(to); })));
  row.push_back(with_commas(static_cast<std::int64_t>(plan.reductions.size())));
  row.push_back(with_commas(static_cast<std::int64_t>(plan.groups.size())));
  std::vector<Rank> available;
  for (int r = 0; r < num_ranks(from); ++r) available.push_back(Rank{r});
  Assignment found;
  row.push_back(fmt::format("{:.1f}", measure(1, [&] { found = assign_devices(from, to, available); })));
  row.push_back(found.is_exact ? "yes"
                               : fmt::format("within {:.1f} %",
                                             100 * (1 - found.bytes_in_place / found.in_place_bound)));
  const auto moved = [&](Bytes bytes_in_place) {
    return fmt::format("{:.1f}", 100 * (1 - bytes_in_place / found.needed_bytes));
  };
  const DiffOutcome<WaveOrder> identity = order_waves(LayoutChange(from, to, {}));
  row.push_back(fmt::format("{:.1f}", 100 * (identity->lower_bound / identity->full_fetch_bytes)));
  row.push_back(moved(found.bytes_in_place));
  table.row(std::move(row));
}

}  // namespace
}  // namespace optimus

int main() {
  using namespace optimus;
  const std::vector<std::pair<int, int>> sizes{{2, 4}, {4, 8}, {8, 16}, {16, 32}, {16, 128}, {16, 782}};
  TextTable table({"devices, from, to", "boxes ms", "change ms", "waves ms", "share ms", "its ops",
                   "its verify ms", "whole diff ms", "transfers", "moved/bound", "max sent/received",
                   "verify ms"});
  for (const auto& [from_sharded, to_sharded] :
       {std::pair(true, true), {false, false}, {false, true}, {true, false}})
    for (const auto& [pp, dp] : sizes)
      bench_change({pp, dp, from_sharded}, {pp / 2, dp * 2, to_sharded}, table);
  for (const auto& [pp, dp] : sizes)
    bench_change({pp, dp, false, true}, {pp / 2, dp * 2, false, true}, table);
  std::puts(table.text().c_str());

  TextTable rest({"devices, from, to", "sync ms", "reductions", "groups", "assign ms", "exact",
                  "moved %, rank = device", "moved %, assigned"});
  for (const bool is_sharded : {false, true})
    for (const auto& [pp, dp] : sizes) {
      bench_sync_and_assign({pp, dp, is_sharded}, {pp / 2, dp * 2, is_sharded}, rest);
      bench_sync_and_assign({pp, dp, is_sharded}, {pp * 2, dp / 2, is_sharded}, rest);
    }
  std::puts(rest.text().c_str());
}
