// See profile.h.
#include "data/profile.h"

#include <algorithm>
#include <bit>

#include "base/units.h"

namespace optimus {
namespace {

TokenId largest_token(const TokenSet& tokens) {
  TokenId largest = -1;
  std::vector<TokenId> block(1 << 16);
  for (std::int64_t at = 0; at < tokens.num_tokens(); at += std::ssize(block)) {
    block.resize(
        static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(block), tokens.num_tokens() - at)));
    tokens.read(at, block);
    largest = std::max(largest, *std::max_element(block.begin(), block.end()));
  }
  return largest;
}

void profile_packing(DatasetProfile& profile, const std::vector<std::int64_t>& lengths) {
  const std::int64_t seq = profile.sequence_length;
  const auto num_targets = std::max<std::int64_t>(profile.tokens - 1, 0);
  profile.stream_samples = (num_targets + seq - 1) / seq;
  if (profile.stream_samples > 0)
    profile.stream_efficiency =
        static_cast<double>(num_targets) / static_cast<double>(profile.stream_samples * seq);
  std::int64_t num_bucketed = 0, num_used = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t remainder = length - 1; remainder > 0; remainder -= seq) {
      const std::int64_t num_in_sample = std::min(remainder, seq);
      ++profile.document_samples;
      num_used += num_in_sample;
      num_bucketed += std::min<std::int64_t>(
          seq, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(num_in_sample))));
    }
  }
  if (profile.document_samples > 0) {
    profile.padded_efficiency =
        static_cast<double>(num_used) / static_cast<double>(profile.document_samples * seq);
    profile.bucketed_efficiency = static_cast<double>(num_used) / static_cast<double>(num_bucketed);
  }
  profile.documents_per_sample =
      profile.stream_samples == 0
          ? 0
          : static_cast<double>(profile.documents) / static_cast<double>(profile.stream_samples);
}

}  // namespace

DatasetProfile profile_data(const TokenSet& tokens, std::int64_t sequence_length, std::string name) {
  DatasetProfile profile;
  profile.name = std::move(name);
  profile.dtype = tokens.dtype();
  profile.documents = tokens.num_documents();
  profile.tokens = tokens.num_tokens();
  profile.largest_token = largest_token(tokens);
  profile.sequence_length = sequence_length;
  std::vector<std::int64_t> lengths;
  for (std::int64_t d = 0; d < profile.documents; ++d)
    lengths.push_back(tokens.document_start(d + 1) - tokens.document_start(d));
  std::sort(lengths.begin(), lengths.end());
  if (!lengths.empty()) {
    const auto quantile = [&](double q) {
      return lengths[static_cast<std::size_t>(q * static_cast<double>(lengths.size() - 1))];
    };
    profile.shortest = lengths.front(), profile.longest = lengths.back();
    profile.median = quantile(0.5), profile.p90 = quantile(0.9), profile.p99 = quantile(0.99);
    profile.mean = static_cast<double>(profile.tokens) / static_cast<double>(profile.documents);
  }
  profile_packing(profile, lengths);
  return profile;
}

OrderedJson to_json(const DatasetProfile& p) {
  return {{"name", p.name},
          {"documents", p.documents},
          {"tokens", p.tokens},
          {"dtype", p.dtype},
          {"largest_token", p.largest_token},
          {"document_tokens",
           {{"mean", p.mean},
            {"median", p.median},
            {"p90", p.p90},
            {"p99", p.p99},
            {"shortest", p.shortest},
            {"longest", p.longest}}},
          {"packing",
           {{"sequence_length", p.sequence_length},
            {"stream", {{"samples", p.stream_samples}, {"efficiency", p.stream_efficiency}}},
            {"document",
             {{"samples", p.document_samples},
              {"padded_efficiency", p.padded_efficiency},
              {"bucketed_efficiency", p.bucketed_efficiency}}},
            {"documents_per_sample", p.documents_per_sample}}}};
}

std::string text(const DatasetProfile& p) {
  std::string result = fmt::format("data       {}\n", p.name);
  result += fmt::format("documents  {}\n", with_commas(p.documents));
  result +=
      fmt::format("tokens     {} ({}, largest id {})\n", with_commas(p.tokens), p.dtype, p.largest_token);
  result += fmt::format("lengths    mean {:.1f}, median {}, p90 {}, p99 {}, {} to {}\n", p.mean,
                        with_commas(p.median), with_commas(p.p90), with_commas(p.p99),
                        with_commas(p.shortest), with_commas(p.longest));
  result += fmt::format("packing    at {} tokens per sequence, fraction of positions that contain a token:\n",
                        p.sequence_length);
  result +=
      fmt::format("           stream    {:5.1f} %  ({} samples per epoch, {:.2f} documents per sample)\n",
                  100 * p.stream_efficiency, with_commas(p.stream_samples), p.documents_per_sample);
  result +=
      fmt::format("           document  {:5.1f} %  ({} samples; {:.1f} % if padded to powers of two)\n",
                  100 * p.padded_efficiency, with_commas(p.document_samples), 100 * p.bucketed_efficiency);
  return result;
}

}  // namespace optimus
