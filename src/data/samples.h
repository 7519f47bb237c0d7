// Samples: random access to training sequences by global sample index, in constant time.
//
//   samples.read(n)  ->  inputs, targets, positions, document indices of global sample n
//
// The result does not depend on the worker. Step t of a run with batch size B trains on samples t * B … (t +
// 1) * B - 1, regardless of which worker computes which sample, and a resumed run needs only the index of its
// next sample. An epoch is a keyed permutation of the windows of a token set. A blend distributes sample
// indices among its token sets in proportion to their weights. There are two ways to split a token set into
// windows (see Packing).
//
// Positions without a loss have the target kNoTarget: padding, positions whose target is in another document,
// and positions that are not masked. The loss of a sample is the sum over all other positions.
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
  // Documents are concatenated and split every `sequence_length` tokens, as in Megatron. The last window of
  // an epoch may be shorter, so no token is lost or repeated.
  stream,
  // Each document is a separate window, or several windows if it is longer than `sequence_length`. Sequence
  // lengths vary.
  document,
};

// Whether attention crosses the document boundaries inside a window (across) or stays within each document,
// where positions restart at 0 (within).
enum class DocumentMask { across, within };

struct SampleOptions {
  std::int64_t sequence_length = 1024;
  Packing packing = Packing::stream;
  DocumentMask mask = DocumentMask::across;
  std::int64_t seed = 0;
};
// Declares the options other than --seq and --seed.
void declare(OptionTable& table, SampleOptions& options);

// A range [begin, end) of stream positions of a token set, such as the training or the validation part.
struct StreamRange {
  std::shared_ptr<const TokenSet> tokens;  // shared by the training and validation ranges of one file
  std::int64_t begin = 0, end = 0;
};

struct Split {
  StreamRange training, validation;
};
// Assigns the last `fraction` of the tokens to validation. If a document starts nearby, the boundary is moved
// to its start. If `fraction` is 0, the validation range is empty.
Split split_for_validation(std::shared_ptr<const TokenSet> tokens, double fraction);

// The unshuffled windows of one range.
class Windows {
 public:
  // With `next_token`, the targets are the inputs shifted by one. Throws a UserError if the range contains
  // no window.
  Windows(StreamRange range, Packing packing, std::int64_t sequence_length, bool next_token);
  std::int64_t size() const;
  // The stream positions of the inputs of a window. With `next_token`, the last target of the window is the
  // token after its last input.
  Span operator[](std::int64_t window) const;
  const StreamRange& range() const { return range_; }

 private:
  StreamRange range_;
  Packing packing_;
  std::int64_t sequence_length_;
  // 1 with `next_token`, where the last target of a window is the first input of the next window; otherwise
  // 0.
  std::int64_t overlap_;
  std::int64_t first_document_ = 0;
  // With document packing, the number of windows before each document.
  std::vector<std::int64_t> window_counts_;
};

struct BlendPart {
  StreamRange range;
  double weight = 1;
};

class Samples {
 public:
  // `parts` must not be empty. The task is masked LM if `masking` is given and next-token prediction
  // otherwise. Throws a UserError for invalid options. read() rejects tokens that are not below `vocab_size`.
  Samples(std::vector<BlendPart> parts, SampleOptions options, std::int64_t vocab_size,
          std::optional<MaskingOptions> masking = std::nullopt);

  // Reads global sample n >= 0. Thread-safe. Throws a UserError if the data contains a token outside the
  // vocabulary.
  Sample read(std::int64_t n) const;
  // The lengths of the attention segments of sample n, in order. If attention stays within documents, each
  // document is a segment. Otherwise the whole sample is one segment. Reads no tokens.
  std::vector<std::int64_t> lengths(std::int64_t n) const;
  // Whether lengths() returns the same result for all samples except the last one of an epoch.
  bool have_equal_lengths() const {
    return options_.packing == Packing::stream && options_.mask == DocumentMask::across;
  }
  // The total number of windows in all parts. After this many samples, each window has been used about once.
  std::int64_t epoch_size() const;
  // The part from which a global sample comes, and the index of the sample within this part.
  struct SampleSource {
    std::size_t part;
    std::int64_t index;
  };
  SampleSource source_of(std::int64_t n) const;

 private:
  // The stream positions of the sample in its part.
  Span window_of(const SampleSource& source) const;
  Sample slice(std::size_t part, Span window) const;

  SampleOptions options_;
  std::int64_t vocab_size_;
  std::optional<MaskingOptions> masking_;
  std::vector<Windows> windows_;
  // The weight of part i divided by the total weight of parts i, i + 1, …, in units of 2^-63.
  std::vector<std::uint64_t> shares_;
};

// Parses Megatron's --data-path notation, "0.7 PREFIX 0.3 PREFIX" or "PREFIX", into pairs of weight and name.
std::vector<std::pair<double, std::string>> parse_blend(const std::vector<std::string>& arguments);

}  // namespace optimus
