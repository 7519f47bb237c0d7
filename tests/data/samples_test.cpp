// Samples: every token is used once per epoch, the result is the same for any split among workers, and blends
// follow their weights.
#include "data/samples.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>
#include <set>

#include "base/temporary_folder.h"
#include "data/profile.h"

namespace optimus {
namespace {

// Documents of the given lengths with the tokens 0, 1, 2, … in stream order, so that each token equals its
// position.
std::shared_ptr<const TokenSet> counting_set(const std::vector<int>& lengths) {
  std::vector<TokenId> tokens;
  std::vector<std::int64_t> starts;
  for (const int length : lengths) {
    starts.push_back(std::ssize(tokens));
    for (int i = 0; i < length; ++i) tokens.push_back(static_cast<TokenId>(tokens.size()));
  }
  if (starts.empty()) starts.push_back(0);
  return tokens_in_memory(std::move(tokens), std::move(starts));
}

constexpr std::int64_t kVocab = 1'000'000;

Samples whole(const std::shared_ptr<const TokenSet>& set, SampleOptions options) {
  return Samples({{{set, 0, set->num_tokens()}, 1.0}}, options, kVocab);
}

auto any_lengths() {
  return rc::gen::suchThat(rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 30)),
                           [](const std::vector<int>& lengths) {
                             return std::accumulate(lengths.begin(), lengths.end(), 0) >= 2;
                           });
}

TEST(Samples, StreamPackingUsesEveryTargetOncePerEpoch) {
  EXPECT_TRUE(rc::check([](std::int64_t seed) {
    const auto lengths = *any_lengths();
    const auto set = counting_set(lengths);
    const SampleOptions options{.sequence_length = *rc::gen::inRange(1, 20), .seed = seed};
    const Samples samples = whole(set, options);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      std::vector<int> inputs(static_cast<std::size_t>(set->num_tokens())), targets(inputs.size());
      for (std::int64_t i = 0; i < samples.epoch_size(); ++i) {
        const Sample sample = samples.read(epoch * samples.epoch_size() + i);
        RC_ASSERT(std::ssize(sample.inputs) <= options.sequence_length);
        for (std::size_t p = 0; p < sample.inputs.size(); ++p) {
          ++inputs[static_cast<std::size_t>(sample.inputs[p])],
              ++targets[static_cast<std::size_t>(sample.targets[p])];
          RC_ASSERT(sample.targets[p] == sample.inputs[p] + 1);
          RC_ASSERT(sample.positions[p] == static_cast<int>(p));
        }
      }
      RC_ASSERT(targets[0] == 0 && inputs.back() == 0);
      RC_ASSERT(std::all_of(targets.begin() + 1, targets.end(), [](int n) { return n == 1; }));
      RC_ASSERT(std::all_of(inputs.begin(), inputs.end() - 1, [](int n) { return n == 1; }));
    }
  }));
}

TEST(Samples, DocumentPackingNeverCrossesADocument) {
  EXPECT_TRUE(rc::check([](std::int64_t seed) {
    const auto lengths = *any_lengths();
    RC_PRE(std::any_of(lengths.begin(), lengths.end(), [](int n) { return n >= 2; }));
    const auto set = counting_set(lengths);
    const Samples samples =
        whole(set, {.sequence_length = *rc::gen::inRange(1, 20), .packing = Packing::document, .seed = seed});
    std::set<TokenId> targets;
    for (std::int64_t i = 0; i < samples.epoch_size(); ++i) {
      const Sample sample = samples.read(i);
      for (const TokenId target : sample.targets) RC_ASSERT(targets.insert(target).second);
      RC_ASSERT(set->document_of(sample.inputs.front()) == set->document_of(sample.targets.back()));
    }
    std::int64_t expected = 0;
    for (const int length : lengths) expected += std::max(0, length - 1);
    RC_ASSERT(std::ssize(targets) == expected);
  }));
}

TEST(Samples, IndependentOfWorkersAndResume) {
  EXPECT_TRUE(rc::check([](std::int64_t seed) {
    const auto set = counting_set({40, 7, 0, 90, 3});
    const SampleOptions options{.sequence_length = 8, .seed = seed};
    const Samples one = whole(set, options), other = whole(set, options);
    const auto n =
        *rc::gen::inRange<std::int64_t>(0, 1'000'000'000'000);  // a resumed run may start at any number
    RC_ASSERT(one.read(n).inputs == other.read(n).inputs);
    const int workers = *rc::gen::inRange(1, 9);
    std::multiset<TokenId> together, alone;
    for (std::int64_t i = 0; i < one.epoch_size(); ++i) alone.insert(one.read(i).inputs[0]);
    for (int worker = 0; worker < workers; ++worker)
      for (std::int64_t i = worker; i < one.epoch_size(); i += workers)
        together.insert(other.read(i).inputs[0]);
    RC_ASSERT(alone == together);
  }));
}

TEST(Samples, EpochsAndSeedsShuffleDifferently) {
  const auto set = counting_set({1000});
  const Samples a = whole(set, {.sequence_length = 10, .seed = 1}),
                b = whole(set, {.sequence_length = 10, .seed = 2});
  int same_epoch = 0, same_seed = 0;
  for (std::int64_t i = 0; i < a.epoch_size(); ++i) {
    same_epoch += a.read(i).inputs == a.read(i + a.epoch_size()).inputs;
    same_seed += a.read(i).inputs == b.read(i).inputs;
  }
  EXPECT_LT(same_epoch, 10);  // 1 of 100 is expected
  EXPECT_LT(same_seed, 10);
}

TEST(Samples, DocumentMaskRestartsPositions) {
  const auto set = counting_set({3, 0, 2, 4});
  const Samples samples = whole(set, {.sequence_length = 8, .mask = DocumentMask::within});
  const Sample sample = samples.read(0);
  EXPECT_EQ(sample.documents, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 2, 2, 2}));
  EXPECT_EQ(sample.positions, (std::vector<std::int32_t>{0, 1, 2, 0, 1, 0, 1, 2}));
  EXPECT_EQ(sample.targets, (std::vector<TokenId>{1, 2, kNoTarget, 4, kNoTarget, 6, 7, 8}));
  EXPECT_EQ(sample.num_targets, 6);
}

// The segment lengths are known without reading tokens.
TEST(Samples, LengthsMatchSamples) {
  for (const Packing packing : {Packing::stream, Packing::document})
    for (const DocumentMask mask : {DocumentMask::across, DocumentMask::within}) {
      const Samples samples = whole(counting_set({5, 1, 0, 12, 3, 30, 2, 2}),
                                    {.sequence_length = 8, .packing = packing, .mask = mask});
      EXPECT_EQ(samples.have_equal_lengths(), packing == Packing::stream && mask == DocumentMask::across);
      for (std::int64_t n = 0; n < 2 * samples.epoch_size(); ++n) {
        const Sample sample = samples.read(n);
        std::vector<std::int64_t> lengths;
        for (const std::int32_t position : sample.positions) {
          if (position == 0) lengths.push_back(0);
          ++lengths.back();
        }
        EXPECT_EQ(samples.lengths(n), lengths) << "sample " << n;
      }
    }
}

TEST(Samples, BlendsFollowWeightsWithoutGaps) {
  EXPECT_TRUE(rc::check([] {
    const auto weights = *rc::gen::nonEmpty(rc::gen::container<std::vector<double>>(
        rc::gen::map(rc::gen::inRange(1, 100), [](int n) { return n / 10.0; })));
    const auto set = counting_set({50});
    std::vector<BlendPart> parts;
    double total = 0;
    for (const double weight : weights) parts.push_back({{set, 0, 50}, weight}), total += weight;
    const Samples samples(parts, {.sequence_length = 8}, kVocab);
    std::vector<std::int64_t> count(weights.size());
    const std::int64_t n = 2000;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto [part, index] = samples.source_of(i);
      RC_ASSERT(index == count[part]++);  // consecutive numbers within each part
    }
    // Each level of the assignment rounds down once, by less than 1, and passes the difference to the later
    // parts. The last term covers the rounding of the share itself, which matters if a share is an integer
    // number of samples: counts up to 2,000 in doubles are accurate to 2,000 * 2^-52 < 1e-12.
    for (std::size_t p = 0; p < weights.size(); ++p)
      RC_ASSERT(std::abs(static_cast<double>(count[p]) - n * weights[p] / total) <=
                1.0 + static_cast<double>(p) + 1e-9);
  }));
}

TEST(Samples, ValidationSplitPrefersDocumentStart) {
  const auto set = counting_set({50, 42, 8});
  const Split split = split_for_validation(set, 0.1);
  EXPECT_EQ(split.training.end, 92);  // 90 was requested; the next document starts at 92
  EXPECT_EQ(split.validation.begin, 92);
  // a single document is split
  EXPECT_EQ(split_for_validation(counting_set({100}), 0.1).validation.begin, 90);
  EXPECT_EQ(split_for_validation(set, 0).validation.begin, 100);
}

TEST(Samples, MaskingIsDeterministicWithCorrectRates) {
  const auto set = counting_set({20'000});
  MaskingOptions masking{.mask_token = 999'999, .vocab_size = kVocab, .special_tokens = {5, 999'999}};
  const Samples samples({{{set, 0, 20'000}, 1.0}}, {.sequence_length = 100}, kVocab, masking);
  EXPECT_EQ(samples.epoch_size(), 200);
  std::int64_t chosen = 0, masked = 0, kept = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    const Sample sample = samples.read(i), again = samples.read(i);
    EXPECT_EQ(sample.inputs, again.inputs);
    EXPECT_GE(sample.num_targets, 1);
    for (std::size_t p = 0; p < sample.inputs.size(); ++p) {
      if (sample.targets[p] == kNoTarget) continue;
      EXPECT_NE(sample.targets[p], 5);
      ++chosen, masked += sample.inputs[p] == 999'999, kept += sample.inputs[p] == sample.targets[p];
    }
  }
  // The tolerances are five standard deviations of the binomial distributions.
  EXPECT_NEAR(static_cast<double>(chosen), 3000, 5 * std::sqrt(20'000 * 0.15 * 0.85));
  EXPECT_NEAR(static_cast<double>(masked), 0.8 * static_cast<double>(chosen), 5 * std::sqrt(3000 * 0.16));
  EXPECT_NEAR(static_cast<double>(kept), 0.1 * static_cast<double>(chosen), 5 * std::sqrt(3000 * 0.09));
}

TEST(Samples, RejectsUnusableData) {
  const auto set = counting_set({10});
  EXPECT_NE(message_of([&] { whole(counting_set({1}), {.sequence_length = 4}); }).find("contains 1 tokens"),
            std::string::npos);
  EXPECT_NE(message_of([&] { whole(set, {.sequence_length = 0}); }).find("--seq"), std::string::npos);
  EXPECT_NE(message_of([&] {
              Samples({{{set, 0, 10}, 0.0}}, {}, kVocab);
            }).find("expected a positive number, got 0"),
            std::string::npos);
  const Samples narrow({{{set, 0, 10}, 1.0}}, {.sequence_length = 16}, 5);
  EXPECT_NE(message_of([&] { narrow.read(0); }).find("token 5 at position 5"), std::string::npos);
  EXPECT_NE(message_of([&] { parse_blend({"0.5", "a", "b"}); }).find("pairs"), std::string::npos);
  EXPECT_NE(message_of([&] {
              parse_blend({"-1", "a", "1", "b"});
            }).find("expected a positive number, got -1"),
            std::string::npos);
  EXPECT_EQ(parse_blend({"0.7", "a", "0.3", "b"}).size(), 2u);
}

TEST(DatasetProfile, CountsLengthsAndPacking) {
  const DatasetProfile profile = profile_data(*counting_set({10, 20, 2}), 16, "x");
  EXPECT_EQ(profile.documents, 3);
  EXPECT_EQ(profile.tokens, 32);
  EXPECT_EQ(profile.largest_token, 31);
  EXPECT_EQ(profile.median, 10);
  EXPECT_EQ(profile.stream_samples, 2);
  EXPECT_DOUBLE_EQ(profile.stream_efficiency, 31.0 / 32);
  EXPECT_EQ(profile.document_samples, 4);  // 9; 16 and 3; 1
  EXPECT_DOUBLE_EQ(profile.padded_efficiency, 29.0 / 64);
  EXPECT_DOUBLE_EQ(profile.bucketed_efficiency, 29.0 / (16 + 16 + 4 + 1));
}

}  // namespace
}  // namespace optimus
