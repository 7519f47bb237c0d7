// DatasetProfile: the properties of a dataset that are relevant for planning and training.
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
  TokenId largest_token = -1;  // the vocabulary must be larger than this id
  // Document lengths in tokens.
  std::int64_t shortest = 0, longest = 0, median = 0, p90 = 0, p99 = 0;
  double mean = 0;

  // For one sequence length, the number of samples per epoch and the fraction of their positions that contain
  // a token, with stream packing (stream_*) and with document packing (data/samples.h).
  std::int64_t sequence_length = 0;
  std::int64_t stream_samples = 0;
  double stream_efficiency = 0;
  std::int64_t document_samples = 0;
  double padded_efficiency = 0;    // each document separately, padded to the sequence length
  double bucketed_efficiency = 0;  // each document separately, padded to the next power of two
  double documents_per_sample = 0;
};

// Reads every document length and every token once.
DatasetProfile profile_data(const TokenSet& tokens, std::int64_t sequence_length, std::string name);
OrderedJson to_json(const DatasetProfile& profile);
std::string text(const DatasetProfile& profile);

}  // namespace optimus
