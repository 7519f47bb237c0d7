// DatasetProfile: what the data are, as far as planning and training care.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/token_set.h"

namespace optimus {

struct DatasetProfile {
  std::string name;
  std::string dtype;
  std::int64_t documents = 0, tokens = 0;
  TokenId largest_token = -1;  // so the vocabulary must have at least one more
  // Lengths of documents, in tokens.
  std::int64_t shortest = 0, longest = 0, median = 0, p90 = 0, p99 = 0;
  double mean = 0;

  // For one sequence length: how many samples an epoch has and which part of their positions carries a token.
  std::int64_t sequence_length = 0;
  std::int64_t stream_samples = 0;
  double stream_efficiency = 0;
  std::int64_t document_samples = 0;
  double padded_efficiency = 0;    // each document by itself, padded to the sequence length
  double bucketed_efficiency = 0;  // each document by itself, padded to the next power of two
  double documents_per_sample = 0;
};

// One pass over lengths and tokens.
DatasetProfile profile_data(const TokenSet& tokens, std::int64_t sequence_length, std::string name);
OrderedJson to_json(const DatasetProfile& profile);
std::string text(const DatasetProfile& profile);

}  // namespace optimus
