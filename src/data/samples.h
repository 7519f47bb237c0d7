// Samples: random access to training sequences by global sample index, in constant time.
//
//   samples.read(n)  ->  inputs, targets, positions, document indices of global sample n
//
// The result does not depend on the worker: step t of a run with batch size B trains on samples t * B … (t +
// 1) * B - 1, regardless of which worker computes which sample, and a resumed run needs only the index of
// its next sample. An epoch is a keyed permutation of the windows of a token set; a blend assigns sample
// indices to its token sets by their weights. There are two ways to split a token set into windows (see
// Packing).
//
// Positions without a loss (padding, a target in another document, a position that is not masked) have the
// target kNoTarget. The loss of a sample is the sum over all other positions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/random.h"
#include "data/masking.h"
#include "data/sample.h"
#include "data/token_set.h"

namespace optimus {

inline constexpr std::int64_t kMaxSequenceLength = 1'000'000'000'000;

enum class Packing {
  // Concatenated documents, split every `sequence_length` tokens as in Megatron; the last window of an epoch
  // may be shorter, so no token is lost or repeated.
  stream,
  // Each document separately, split into several windows if it is longer than `sequence_length`; the lengths
  // of the sequences vary.
  document,
};

// Whether attention crosses document boundaries inside a window (across), or stays within a document and
// positions restart there (within).
enum class DocumentMask { across, within };

struct SampleOptions {
  std::int64_t sequence_length = 1024;
  Packing packing = Packing::stream;
  DocumentMask mask = DocumentMask::across;
  std::int64_t seed = 0;
};
// Declares the options other than --seq and --seed.
void declare(OptionTable& table, SampleOptions& options);

// A range [begin, end) of stream positions of a token set, for instance all but the validation part.
struct StreamRange {
  std::shared_ptr<const TokenSet> tokens;  // shared by the training and the validation range of one file
  std::int64_t begin = 0, end = 0;
};

struct Split {
  StreamRange training, validation;
};
// Assigns the last `fraction` of the tokens to validation. The boundary is moved to the start of a document
// if one is near. If `fraction` is 0, there is no validation part.
Split split_for_validation(std::shared_ptr<const TokenSet> tokens, double fraction);

// The windows of one range in order, without shuffling.
class Windows {
 public:
  // With `next_token`, the targets are the inputs shifted by one. Throws a UserError if the range contains
  // no window.
  Windows(StreamRange range, Packing packing, std::int64_t sequence_length, bool next_token);
  std::int64_t size() const;
  // The stream positions of the inputs of a window. With `next_token`, the window's last target is the token
  // that follows them.
  Span operator[](std::int64_t window) const;
  const StreamRange& range() const { return range_; }

 private:
  StreamRange range_;
  Packing packing_;
  std::int64_t sequence_length_;
  // 1 with `next_token`, where the last target of a window is the first input of the next one; otherwise 0
  std::int64_t overlap_;
  std::int64_t first_document_ = 0;
  // For document packing: the number of windows before each document.
  std::vector<std::int64_t> window_counts_;
};

struct BlendPart {
  StreamRange range;
  double weight = 1;
};

class Samples {
 public:
  // `parts` has one or more elements. With `masking` the task is masked LM, otherwise next-token prediction.
  // read() reports the position of a token that is not below `vocab_size`. Throws UserError.
  Samples(std::vector<BlendPart> parts, SampleOptions options, std::int64_t vocab_size,
          std::optional<MaskingOptions> masking = std::nullopt);

  // Reads global sample n >= 0. Thread-safe. Throws a UserError if the data contains a token outside the
  // vocabulary.
  Sample read(std::int64_t n) const;
  // The lengths of the attention segments of sample n, in order: its documents if attention stays within
  // documents, otherwise the sample as a whole. Reads no tokens.
  std::vector<std::int64_t> lengths(std::int64_t n) const;
  // Whether the result of lengths() is the same for all samples, except the last of an epoch.
  bool have_equal_lengths() const {
    return options_.packing == Packing::stream && options_.mask == DocumentMask::across;
  }
  // Total number of windows of all parts: the number of samples until each window has been used about once.
  std::int64_t epoch_size() const;
  // The part that global sample n comes from, and the index of the sample within that part.
  struct SampleSource {
    std::size_t part;
    std::int64_t index;
  };
  SampleSource source_of(std::int64_t n) const;

 private:
  // The positions of the sample in the stream of its part.
  Span window_of(const SampleSource& source) const;
  Sample slice(std::size_t part, Span window) const;

  SampleOptions options_;
  std::int64_t vocab_size_;
  std::optional<MaskingOptions> masking_;
  std::vector<Windows> windows_;
  // Weight of part i / total weight of the parts i, i + 1, …, in units of 2^-63.
  std::vector<std::uint64_t> shares_;
};

// Parses Megatron's --data-path notation, "0.7 PREFIX 0.3 PREFIX" or "PREFIX", into pairs of weight and name.
std::vector<std::pair<double, std::string>> parse_blend(const std::vector<std::string>& arguments);

}  // namespace optimus
