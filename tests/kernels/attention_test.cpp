// Compares the attention implementations with each other, and the plain one with finite differences.
#include "kernels/attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>

#include <array>
#include <numeric>

#include "kernels/attention_dropout.h"
#include "kernels/host_dropout.h"
#include "tensors.h"

namespace optimus {
namespace {

using namespace test;

struct Case {
  std::string name;
  AttentionTask task;
};

AttentionTask task_of(std::int64_t sequences, std::int64_t length, std::int64_t heads, std::int64_t kv_heads,
                      std::int64_t head_dim, bool is_causal) {
  return {.shape = {.sequences = sequences,
                    .length = length,
                    .heads = heads,
                    .kv_heads = kv_heads,
                    .head_dim = head_dim,
                    .is_causal = is_causal,
                    .scale = 1 / std::sqrt(static_cast<double>(head_dim))},
          .segments = {},
          .dropout = {}};
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const bool is_causal : {true, false}) {
    const std::string suffix = is_causal ? "Causal" : "Full";
    result.push_back({"One" + suffix, task_of(1, 1, 1, 1, 4, is_causal)});
    result.push_back({"Odd" + suffix, task_of(2, 37, 3, 3, 20, is_causal)});
    result.push_back({"Blocks" + suffix, task_of(1, 140, 2, 2, 64, is_causal)});
    result.push_back({"Grouped" + suffix, task_of(3, 70, 6, 2, 16, is_causal)});
    AttentionTask padded = task_of(3, 90, 4, 2, 24, is_causal);
    padded.segments = {{.sequence = 0, .begin = 0, .end = 90}, {.sequence = 2, .begin = 0, .end = 13}};
    result.push_back({"Padded" + suffix, padded});
    AttentionTask documents = task_of(2, 150, 2, 1, 12, is_causal);
    documents.segments = {{.sequence = 1, .begin = 5, .end = 6},
                          {.sequence = 0, .begin = 0, .end = 70},
                          {.sequence = 0, .begin = 70, .end = 150},
                          {.sequence = 1, .begin = 6, .end = 6},
                          {.sequence = 1, .begin = 40, .end = 150}};
    result.push_back({"Documents" + suffix, documents});
  }
  return result;
}

AttentionTask with_dropout(AttentionTask task) {
  task.dropout = {.rate = 0.3, .key = RandomKey(11).derive("attention"), .first_head = 2};
  for (std::int64_t i = 0; i < task.shape.sequences; ++i) task.dropout.samples.push_back(100 + 17 * i);
  return task;
}

// q, k, v as column ranges of one buffer, and all other tensors of a call.
struct Tensors {
  at::Tensor q, k, v, dout, out, logsumexp, dq, dk, dv;

  Tensors(const AttentionShape& shape, at::ScalarType type) {
    const std::int64_t rows = shape.sequences * shape.length, width = shape.head_dim;
    const std::int64_t columns = (shape.heads + 2 * shape.kv_heads) * width;
    const at::Tensor fused = random_tensor("qkv", {rows, columns}, type),
                     gradients = random_tensor("dqkv", {rows, columns}, type);
    const auto split = [&](const at::Tensor& buffer, at::Tensor& a, at::Tensor& b, at::Tensor& c) {
      const std::int64_t query = shape.heads * width, key = shape.kv_heads * width;
      a = buffer.narrow(1, 0, query).unflatten(1, {shape.heads, width});
      b = buffer.narrow(1, query, key).unflatten(1, {shape.kv_heads, width});
      c = buffer.narrow(1, query + key, key).unflatten(1, {shape.kv_heads, width});
    };
    split(fused, q, k, v);
    split(gradients, dq, dk, dv);
    dout = random_tensor("dout", {rows, shape.heads, width}, type);
    out = random_tensor("out", {rows, shape.heads, width}, type);
    logsumexp = random_tensor("lse", {shape.sequences, shape.heads, shape.length}, wide_type(type));
  }
  // The same numbers in fp64.
  Tensors in_fp64() const {
    Tensors result = *this;
    for (at::Tensor* tensor : {&result.q, &result.k, &result.v, &result.dout, &result.out, &result.logsumexp,
                               &result.dq, &result.dk, &result.dv})
      *tensor = in_double(*tensor);
    return result;
  }
  void forward(const Attention& attention, const AttentionTask& task) {
    attention.forward(task, q, k, v, out, logsumexp);
  }
  void backward(const Attention& attention, const AttentionTask& task) {
    attention.backward(task, dout, q, k, v, out, logsumexp, dq, dk, dv);
  }
};

// ATen's kernels for 16-bit types round probabilities and their gradients to the element type, so several
// roundings of 2^-9 (bf16) or 2^-12 (fp16) add up; fp32: sums of head_dim and length terms.
double limit(at::ScalarType type) {
  if (type == at::kDouble) return 1e-13;
  if (type == at::kFloat) return 5e-6;
  return type == at::kBFloat16 ? std::ldexp(1, -6) : std::ldexp(1, -9);
}

// ATen's kernels for 16-bit types use a shorter series for the exponential: error about 1e-5.
double statistics_limit(at::ScalarType type) {
  if (type == at::kDouble) return 1e-13;
  return type == at::kFloat ? 5e-6 : 1e-4;
}

void compare(const Attention& tested, const AttentionTask& task, at::ScalarType type) {
  const auto plain = make_plain_attention();
  Tensors got(task.shape, type), expected = got.in_fp64();
  got.forward(tested, task);
  expected.forward(*plain, task);
  EXPECT_CLOSE(got.out, expected.out, limit(type));
  EXPECT_CLOSE(got.logsumexp, expected.logsumexp, statistics_limit(type));
  got.backward(tested, task);
  expected.backward(*plain, task);
  EXPECT_CLOSE(got.dq, expected.dq, limit(type));
  EXPECT_CLOSE(got.dk, expected.dk, limit(type));
  EXPECT_CLOSE(got.dv, expected.dv, limit(type));
}

class AttentionTest : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionTest, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(c10::toString(type.param)); });

TEST_P(AttentionTest, FusedEqualsPlain) {
  for (const Case& next : cases()) {
    SCOPED_TRACE(next.name);
    compare(*make_fused_attention(), next.task, GetParam());
  }
}

TEST_P(AttentionTest, HostEqualsPlain) {
  for (const Case& next : cases()) {
    SCOPED_TRACE(next.name);
    compare(*make_host_attention(), next.task, GetParam());
  }
}

TEST_P(AttentionTest, HostEqualsPlainWithDropout) {
  for (const Case& next : cases()) {
    SCOPED_TRACE(next.name);
    compare(*make_host_attention(), with_dropout(next.task), GetParam());
    compare(*make_fused_attention(), with_dropout(next.task), GetParam());
  }
}

TEST_P(AttentionTest, GradientsMayAliasInputs) {
  for (const auto& make : {make_plain_attention, make_fused_attention, make_host_attention}) {
    const AttentionTask task = task_of(2, 70, 4, 2, 16, true);
    const auto attention = make();
    Tensors apart(task.shape, GetParam()), in_place(task.shape, GetParam());
    apart.forward(*attention, task), in_place.forward(*attention, task);
    apart.backward(*attention, task);
    in_place.dq = in_place.q, in_place.dk = in_place.k, in_place.dv = in_place.v;
    in_place.backward(*attention, task);
    EXPECT_TRUE(at::equal(in_place.dq, apart.dq) && at::equal(in_place.dk, apart.dk) &&
                at::equal(in_place.dv, apart.dv));
  }
}

// Sequences one by one, and heads in two halves as on two ranks: the same masks, so the same results.
TEST_P(AttentionTest, DropoutDoesNotDependOnTheSplit) {
  const AttentionTask whole = with_dropout(task_of(3, 40, 4, 2, 8, true));
  const auto attention = make_host_attention();
  Tensors all(whole.shape, GetParam());
  all.forward(*attention, whole);
  for (std::int64_t sequence = 0; sequence < 3; ++sequence)
    for (std::int64_t half = 0; half < 2; ++half) {
      AttentionTask part = whole;
      part.shape.sequences = 1, part.shape.heads = 2, part.shape.kv_heads = 1;
      part.dropout.samples = {whole.dropout.samples[static_cast<std::size_t>(sequence)]};
      part.dropout.first_head += 2 * half;
      Tensors one(part.shape, GetParam());
      one.q = all.q.narrow(0, 40 * sequence, 40).narrow(1, 2 * half, 2);
      one.k = all.k.narrow(0, 40 * sequence, 40).narrow(1, half, 1);
      one.v = all.v.narrow(0, 40 * sequence, 40).narrow(1, half, 1);
      one.forward(*attention, part);
      EXPECT_TRUE(at::equal(one.out, all.out.narrow(0, 40 * sequence, 40).narrow(1, 2 * half, 2)));
    }
}

// Derivative of sum(out * dout) in a random direction, by central differences: the error is a few 1e-9 of the
// value.
TEST(PlainAttentionTest, GradientsAreDerivatives) {
  for (Case next : cases())
    for (const AttentionTask& task : {next.task, with_dropout(next.task)}) {
      SCOPED_TRACE(next.name);
      const auto plain = make_plain_attention();
      Tensors at_point(task.shape, at::kDouble);
      at_point.forward(*plain, task);
      at_point.backward(*plain, task);
      const at::Tensor gq = at_point.dq.clone(), gk = at_point.dk.clone(), gv = at_point.dv.clone();
      const at::Tensor uq = random_tensor("uq", gq.sizes().vec(), at::kDouble),
                       uk = random_tensor("uk", gk.sizes().vec(), at::kDouble);
      const at::Tensor uv = random_tensor("uv", gv.sizes().vec(), at::kDouble);
      const auto value = [&](double step) {
        Tensors moved = at_point;
        moved.q = at_point.q + step * uq, moved.k = at_point.k + step * uk, moved.v = at_point.v + step * uv;
        moved.out = at_point.out.clone(), moved.logsumexp = at_point.logsumexp.clone();
        moved.forward(*plain, task);
        return (moved.out * moved.dout).sum().item<double>();
      };
      const double step = 1e-5, slope = (value(step) - value(-step)) / (2 * step);
      const double expected = ((gq * uq).sum() + (gk * uk).sum() + (gv * uv).sum()).item<double>();
      EXPECT_NEAR(slope, expected, 1e-6 * (1 + std::abs(expected)));
    }
}

// The answers of Random123 (kat_vectors, philox4x32 with 7 rounds) for a counter and key of zeros.
TEST(AttentionDropoutTest, WordsAreThoseOfPhilox) {
  const DropoutWords words = dropout_words(0, 0, 0, 0);
  EXPECT_EQ(words.at[0], 0x5f6fb709u);
  EXPECT_EQ(words.at[1], 0x0d893f64u);
  EXPECT_EQ(words.at[2], 0x4f121f81u);
  EXPECT_EQ(words.at[3], 0x4f730a48u);
}

TEST(AttentionDropoutTest, DeviceCodeDerivesTheSameKeys) {
  for (const std::uint64_t id : {std::uint64_t{0}, std::uint64_t{5}, ~std::uint64_t{0}})
    EXPECT_EQ(derived_key(RandomKey(3).value, id), RandomKey(3).derive(id).value);
}

TEST(AttentionDropoutTest, ThresholdsAreMultiplesOf256) {
  EXPECT_EQ(dropout_threshold(0.1), 26u);
  EXPECT_EQ(dropout_threshold(0.5), 128u);
  EXPECT_EQ(dropout_threshold(0.0001), 1u);
  EXPECT_EQ(dropout_threshold(0.9999), 255u);
  EXPECT_EQ(dropout_scale(128), 2.0);
}

// Every score of a tile has its own byte.
TEST(AttentionDropoutTest, PlacesOfATileAreDistinct) {
  std::array<int, 512> uses{};
  for (std::int64_t i = 16; i < 32; ++i)
    for (std::int64_t j = 64; j < 96; ++j) {
      const DropoutPlace place = dropout_place(i, j);
      EXPECT_EQ(place.tile_row, 1u);
      EXPECT_EQ(place.tile_column, 2u);
      ++uses[place.lane * 16 + static_cast<std::size_t>(place.word * 4 + place.byte)];
    }
  for (const int count : uses) EXPECT_EQ(count, 1);
}

TEST(AttentionDropoutTest, BlocksHaveTheScoresOfTheDefinition) {
  constexpr std::int64_t kStride = 70;
  const RandomKey key = RandomKey(7).derive("head");
  for (const Span queries : {Span{0, 64}, Span{3, 4}, Span{13, 50}, Span{1000, 1037}})
    for (const Span keys : {Span{0, 64}, Span{31, 33}, Span{17, 81}, Span{1023, 1024}}) {
      std::array<std::uint8_t, 64 * kStride> retained{};
      fill_retained_scores(key, 77, queries, keys, retained.data(), kStride);
      for (std::int64_t i = queries.begin; i < queries.end; ++i)
        for (std::int64_t j = keys.begin; j < keys.end; ++j)
          ASSERT_EQ(retained[static_cast<std::size_t>((i - queries.begin) * kStride + j - keys.begin)],
                    is_dropped(key.value, 77, i, j) ? 0 : 1);
    }
}

// The number of dropped scores of 2^20 has a standard deviation of at most 512, 5e-4 of all: six are 3e-3.
TEST(AttentionDropoutTest, RateIsThatOfTheThreshold) {
  for (const double rate : {0.1, 0.5}) {
    std::vector<std::uint8_t> retained(1 << 20);
    fill_retained_scores(RandomKey(1), dropout_threshold(rate), {0, 1024}, {0, 1024}, retained.data(), 1024);
    const double sum = std::accumulate(retained.begin(), retained.end(), 0.0);
    EXPECT_NEAR(1 - sum / (1 << 20), dropout_threshold(rate) / 256.0, 3e-3);
  }
}

}  // namespace
}  // namespace optimus
