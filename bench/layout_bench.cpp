// How the layout algebra grows with the cluster: a 405B model (126 layers, hidden 16384) on 64 to 100,000
// devices, from pp 2k to pp k, tensor parallel 8, optimizer state sharded over the data-parallel ranks or
// replicated on them.
//
//   bench_layout            the whole table, one core, best of three
//
// Goals (docs/architecture.md): one rank's share at 100,000 devices in 50 ms, the whole diff at 16,384 in 2
// s.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "base/text.h"
#include "layout/change.h"
#include "layout/diff.h"
#include "layout/layout.h"
#include "layout/verify.h"

namespace optimus {
namespace {

struct Size {
  int pp, dp;
  bool is_sharded;
};
constexpr int kTp = 8, kLayers = 126;

void add_tensor(Layout& layout, const std::string& name, Shape shape, int block, int grid, int cut_dim) {
  layout.tensors.push_back({name, shape, 12, block});
  Placement placement{grid, cut_dim, {}};
  if (cut_dim >= 0) placement.parts = split_evenly(shape[cut_dim], kTp);
  layout.placements.push_back({placement});
}

Layout llama_405b(const Size& size) {
  constexpr std::int64_t hidden = 16384, ffn = 53248, kv = 1024, vocab = 128256;
  Layout layout;
  int next = 0;
  for (int stage = 0; stage < size.pp; ++stage) {
    DeviceGrid grid{size.is_sharded ? 1 : size.dp, size.is_sharded ? size.dp : 1, kTp, {}};
    for (int i = 0; i < grid.size(); ++i) grid.ranks.push_back(Rank{next++});
    layout.grids.push_back(std::move(grid));
  }
  add_tensor(layout, "embedding", {vocab, hidden}, 0, 0, 0);
  const std::vector<Span> stages = split_evenly(kLayers, size.pp);
  for (int stage = 0; stage < size.pp; ++stage)
    for (auto layer = stages[static_cast<std::size_t>(stage)].begin;
         layer < stages[static_cast<std::size_t>(stage)].end; ++layer) {
      const auto add = [&](const char* name, Shape shape, int cut_dim) {
        add_tensor(layout, fmt::format("layers.{}.{}", layer, name), shape, static_cast<int>(layer) + 1,
                   stage, cut_dim);
      };
      add("norm1", {hidden}, -1), add("norm2", {hidden}, -1);
      add("q", {hidden, hidden}, 0), add("k", {kv, hidden}, 0), add("v", {kv, hidden}, 0),
          add("o", {hidden, hidden}, 1);
      add("gate", {ffn, hidden}, 0), add("up", {ffn, hidden}, 0), add("down", {hidden, ffn}, 1);
    }
  add_tensor(layout, "final_norm", {hidden}, kLayers + 1, size.pp - 1, -1);
  add_tensor(layout, "head", {vocab, hidden}, kLayers + 1, size.pp - 1, 0);
  return layout;
}

// Milliseconds, the best of `times`.
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

void bench_change(const Size& a, const Size& b, TextTable& table) {
  const Layout from = llama_405b(a), to = llama_405b(b);
  const int devices = a.pp * a.dp * kTp;
  const Rank rank{devices / 2 + 3};
  const DiffOptions options{.reserve = Bytes(std::int64_t{8} << 30)};
  std::vector<std::string> row{fmt::format("{} {} -> {}", with_commas(devices),
                                           a.is_sharded ? "sharded" : "replicated",
                                           b.is_sharded ? "sharded" : "replicated")};
  const auto add = [&](double ms) { row.push_back(fmt::format("{:.1f}", ms)); };
  add(measure(3, [&] { boxes_of(to, RankIndex(to), rank); }));
  add(measure(3, [&] { Change(from, to, options); }));
  const Change change(from, to, options);
  add(measure(3, [&] { (void)order_waves(change); }));
  const auto found = order_waves(change);
  if (!found) throw UserError("{}", found.error().why);
  const WaveOrder& order = *found;
  std::size_t operations = 0;
  add(measure(3, [&] {
    const RankShare share = diff_for(change, order, rank).value();
    operations = 0;
    for (const auto& wave : share.waves) operations += wave.operations.size();
  }));
  row.push_back(with_commas(static_cast<std::int64_t>(operations)));
  if (const bool is_small = devices <= 16384 && !(a.is_sharded && !b.is_sharded); is_small) {
    TransferPlan plan;
    add(measure(devices < 10'000 ? 3 : 1, [&] { plan = diff(from, to, options).value(); }));
    row.push_back(with_commas(static_cast<std::int64_t>(plan.transfers.size())));
    row.push_back(fmt::format("{:.3f}", plan.moved / plan.lower_bound));
    row.push_back(fmt::format("{:.2f}", plan.max_sent / plan.max_received));
    add(measure(1, [&] { value_or_throw(verify(from, to, plan, options)); }));
  } else {
    row.insert(row.end(), 5, "-");
  }
  table.row(std::move(row));
}

}  // namespace
}  // namespace optimus

int main() {
  using namespace optimus;
  TextTable table({"devices, state", "boxes ms", "change ms", "waves ms", "share ms", "its ops",
                   "whole diff ms", "transfers", "moved/bound", "max sent/received", "verify ms"});
  const std::vector<std::pair<int, int>> sizes{{2, 4}, {4, 8}, {8, 16}, {16, 32}, {16, 128}, {16, 782}};
  for (const auto& [from_sharded, to_sharded] :
       {std::pair(true, true), {false, false}, {false, true}, {true, false}})
    for (const auto& [pp, dp] : sizes)
      bench_change({pp, dp, from_sharded}, {pp / 2, dp * 2, to_sharded}, table);
  std::puts(table.text().c_str());
}
