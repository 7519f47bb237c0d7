// Samples: what one training sequence is, for any global sample number, in constant time.
//
//   samples.read(n)  ->  inputs, targets, positions, document numbers of global sample n
//
// Nothing depends on who asks: step t of a run with batch B trains on samples t * B … (t + 1) * B - 1,
// whoever computes which of them, and a resumed run needs only the next number. An epoch is a keyed
// permutation of the set's windows; a blend deals sample numbers to its sets by their weights. Two ways to
// cut a set into windows (see Packing).
//
// Positions whose target does not count (padding, across documents, not masked) have target kNoTarget: losses
// are sums over counted targets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/random.h"
#include "data/token_set.h"

namespace optimus {

inline constexpr TokenId kNoTarget = -1;
inline constexpr std::int64_t kLongestSequence = 1'000'000'000'000;

enum class Packing {
  stream,  // documents back to back, cut every `sequence_length` tokens, as Megatron does; the last window of
           // an epoch may be shorter, so no token is lost and none is repeated
  document,  // each document by itself, long ones in several windows: sequences of varying length
};

// What attention may see across document bounds inside a window, and whether positions restart there.
enum class DocumentMask { across, within };

struct SampleOptions {
  std::int64_t sequence_length = 1024;
  Packing packing = Packing::stream;
  DocumentMask mask = DocumentMask::across;
  std::int64_t seed = 0;
};
// The options that a user sets beside --seq and --seed.
void declare(OptionTable& table, SampleOptions& options);

// For masked-LM training instead of next-token prediction.
struct MaskingOptions {
  TokenId mask_token = 0;
  std::int64_t vocab_size = 0;
  std::vector<TokenId> special_tokens;  // never chosen, never put in
  double chosen = 0.15;  // of the positions; of these 80 % become the mask, 10 % a random token
};

struct Sample {
  std::vector<TokenId> inputs, targets;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> documents;  // 0, 1, … inside the sample, in order
  std::int64_t num_counted = 0;         // targets that are not kNoTarget
};

// A part of a token set: the stream positions [begin, end), for instance without the validation part.
struct StreamRange {
  std::shared_ptr<const TokenSet> tokens;  // shared by the training and the validation range of one file
  std::int64_t begin = 0, end = 0;
};

struct Split {
  StreamRange training, validation;
};
// The last `fraction` of the tokens for validation, cut at a document's start where one is near. Fraction 0:
// none.
Split split_for_validation(std::shared_ptr<const TokenSet> tokens, double fraction);

// The windows of one range, in order: window w of an epoch, no shuffling.
class Windows {
 public:
  // next_token: inputs and targets shifted by one. Throws UserError when the range holds no window.
  Windows(StreamRange range, Packing packing, std::int64_t sequence_length, bool next_token);
  std::int64_t size() const;
  // Stream positions of the inputs of window w. With next_token each has one token more behind it, the last
  // target.
  Span operator[](std::int64_t window) const;
  const StreamRange& range() const { return range_; }

 private:
  StreamRange range_;
  Packing packing_;
  std::int64_t sequence_length_;
  std::int64_t overlap_;  // 1 with next_token: a window's last target is the next one's first input
  std::int64_t first_document_ = 0;
  std::vector<std::int64_t> window_counts_;  // document packing: windows before each document
};

struct BlendPart {
  StreamRange range;
  double weight = 1;
};

class Samples {
 public:
  // One part or several. With masking, the masked-LM task; else next-token prediction. `vocab_size`: a token
  // outside is refused with the place where it stands. Throws UserError.
  Samples(std::vector<BlendPart> parts, SampleOptions options, std::int64_t vocab_size,
          std::optional<MaskingOptions> masking = std::nullopt);

  // Global sample n >= 0. Thread-safe. Throws UserError when the data holds a token outside the vocabulary.
  Sample read(std::int64_t n) const;
  // How long the pieces of sample n are that attention sees as wholes, in order; no token is read.
  std::vector<std::int64_t> lengths(std::int64_t n) const;
  // Whether these are the same for all samples, but for the last of an epoch.
  bool are_alike() const {
    return options_.packing == Packing::stream && options_.mask == DocumentMask::across;
  }
  // Windows of all parts together: samples until each has been seen about once.
  std::int64_t epoch_size() const;
  // Which part global sample n comes from, and its number among that part's samples.
  struct Dealt {
    std::size_t part;
    std::int64_t index;
  };
  Dealt deal(std::int64_t n) const;

 private:
  // Of the stream of its part.
  Span window_of(const Dealt& dealt) const;
  Sample cut(std::size_t part, Span window) const;

  SampleOptions options_;
  std::int64_t vocab_size_;
  std::optional<MaskingOptions> masking_;
  std::vector<Windows> windows_;
  std::vector<std::uint64_t> shares_;  // of part i among parts i, i + 1, …, in units of 2^-63
};

// "0.7 PREFIX 0.3 PREFIX" or "PREFIX": Megatron's --data-path notation, as (weight, name).
std::vector<std::pair<double, std::string>> parse_blend(const std::vector<std::string>& words);

}  // namespace optimus
