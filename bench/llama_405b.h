// Sample layouts for benchmarks and scale tests: a 405B model (126 layers, hidden 16384, 8 key/value heads),
// tensor parallel 8, fp32 master weights and moments (12 bytes per element).
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "layout/layout.h"
#include "layout/rank_domains.h"

namespace optimus {

struct ClusterSize {
  int pp, dp;
  bool is_sharded;
  bool has_own_groups = false;  // one group per pipeline, as in plans with unequal pipelines
  std::string text() const {
    return fmt::format("pp{} dp{} {}", pp, dp,
                       has_own_groups ? "pipelines"
                       : is_sharded   ? "sharded"
                                      : "replicated");
  }
};
inline constexpr int kTp = 8, kLayers = 126;

class Llama405bBuilder {
 public:
  explicit Llama405bBuilder(const ClusterSize& size) : size_(size) {
    int next = 0;
    for (int stage = 0; stage < size.pp; ++stage)
      for (int group = 0; group < num_groups(); ++group) {
        const int dp = size.dp / num_groups();
        DeviceGrid grid{size.is_sharded ? 1 : dp, size.is_sharded ? dp : 1, kTp, {}};
        for (int i = 0; i < grid.size(); ++i) grid.ranks.push_back(Rank{next++});
        layout_.grids.push_back(std::move(grid));
      }
  }

  void add(const std::string& name, Shape shape, int block, int stage, int split_dim) {
    layout_.tensors.push_back({name, shape, 12, block});
    auto& placements = layout_.placements.emplace_back();
    for (int group = 0; group < num_groups(); ++group) {
      Placement placement{stage * num_groups() + group, split_dim, {}};
      if (split_dim >= 0) placement.parts = split_evenly(shape[split_dim], kTp);
      placements.push_back(placement);
    }
  }
  Layout build() { return std::move(layout_); }

 private:
  int num_groups() const { return size_.has_own_groups ? size_.dp : 1; }
  ClusterSize size_;
  Layout layout_;
};

inline Layout llama_405b(const ClusterSize& size) {
  constexpr std::int64_t hidden = 16384, ffn = 53248, kv = 1024, vocab = 128256;
  Llama405bBuilder builder(size);
  builder.add("embedding", {vocab, hidden}, 0, 0, 0);
  const std::vector<Span> stages = split_evenly(kLayers, size.pp);
  for (int stage = 0; stage < size.pp; ++stage) {
    const Span layers = stages[static_cast<std::size_t>(stage)];
    for (auto layer = layers.begin; layer < layers.end; ++layer) {
      const auto add = [&](const char* name, Shape shape, int split_dim) {
        builder.add(fmt::format("layers.{}.{}", layer, name), shape, static_cast<int>(layer) + 1, stage,
                    split_dim);
      };
      add("norm1", {hidden}, -1), add("norm2", {hidden}, -1);
      add("q", {hidden, hidden}, 0), add("k", {kv, hidden}, 0), add("v", {kv, hidden}, 0),
          add("o", {hidden, hidden}, 1);
      add("gate", {ffn, hidden}, 0), add("up", {ffn, hidden}, 0), add("down", {hidden, ffn}, 1);
    }
  }
  builder.add("final_norm", {hidden}, kLayers + 1, size.pp - 1, -1);
  builder.add("head", {vocab, hidden}, kLayers + 1, size.pp - 1, 0);
  return builder.build();
}

// Nodes of 8 devices, racks of 32 nodes.
inline RankDomains nodes_and_racks(int devices) {
  RankDomains topology{{{}, {}}};
  for (int r = 0; r < devices; ++r)
    topology.domain_of[0].push_back(r / 8), topology.domain_of[1].push_back(r / 256);
  return topology;
}

}  // namespace optimus
