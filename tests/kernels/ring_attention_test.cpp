// Ring attention: all parts and all ring steps together compared with plain attention over whole sequences;
// also the scores of each ring step.
#include "kernels/ring_attention.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <rapidcheck.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/host_attention.h"
#include "schedule/share.h"
#include "tensors.h"

namespace optimus {
namespace {

using namespace test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

ContextPositions positions_of(std::int64_t length, int cp, int part) {
  const Side side{.num_devices = cp, .strategy = {.cp = cp}};
  return share_of(side, part, 1, length, false).positions;
}

std::vector<std::int64_t> positions_in(const ContextPositions& spans) {
  std::vector<std::int64_t> result;
  for (const Span& span : spans)
    for (std::int64_t position = span.begin; position < span.end; ++position) result.push_back(position);
  return result;
}

// A whole task and the number of parts into which its positions are split.
struct RingCase {
  AttentionTask task;
  int cp = 1;
};

// Documents and gaps, one after another; some sequences have none, and sequences come in any order.
std::vector<AttentionSegment> random_segments(std::int64_t sequences, std::int64_t length) {
  std::vector<AttentionSegment> segments;
  for (std::int64_t sequence = sequences - 1; sequence >= 0; --sequence)
    for (std::int64_t begin = 0; begin < length;) {
      const std::int64_t end = std::min(length, begin + *rc::gen::inRange<std::int64_t>(0, length + 1));
      if (*rc::gen::inRange(0, 4) > 0) segments.push_back({sequence, begin, end});
      begin = std::max(end, begin + 1);
    }
  return segments;
}

RingCase random_case(std::int64_t longest) {
  RingCase result;
  AttentionShape& shape = result.task.shape;
  shape.sequences = *rc::gen::inRange(1, 4);
  shape.length = *rc::gen::inRange<std::int64_t>(1, longest);
  shape.kv_heads = *rc::gen::inRange(1, 3);
  shape.heads = shape.kv_heads * *rc::gen::inRange(1, 4);
  shape.head_dim = *rc::gen::inRange(1, 25);
  shape.is_causal = *rc::gen::arbitrary<bool>();
  shape.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  if (*rc::gen::arbitrary<bool>()) result.task.segments = random_segments(shape.sequences, shape.length);
  if (*rc::gen::arbitrary<bool>()) {
    result.task.dropout = {.rate = 0.3, .key = RandomKey(11).derive("ring"), .samples = {}, .first_head = 2};
    for (std::int64_t i = 0; i < shape.sequences; ++i) result.task.dropout.samples.push_back(100 + 17 * i);
  }
  result.cp = *rc::gen::inRange(1, 6);
  return result;
}

RingTask ring_step_of(const RingCase& whole, int own, int theirs) {
  const AttentionShape& shape = whole.task.shape;
  const ContextPositions mine = positions_of(shape.length, whole.cp, own),
                         others = positions_of(shape.length, whole.cp, theirs);
  return {.shape = shape,
          .own_length = static_cast<std::int64_t>(positions_in(mine).size()),
          .key_length = static_cast<std::int64_t>(positions_in(others).size()),
          .pieces =
              ring_pieces(mine, others, shape.sequences, shape.length, shape.is_causal, whole.task.segments),
          .dropout = whole.task.dropout};
}

// [sequences, query, key] of a whole task: how often a pair is computed, 0 or 1.
std::vector<int> pairs_of(const AttentionTask& task) {
  const std::int64_t length = task.shape.length;
  std::vector<int> result(static_cast<std::size_t>(task.shape.sequences * length * length));
  for (const AttentionSegment& segment : segments_of(task))
    for (std::int64_t query = segment.begin; query < segment.end; ++query)
      for (std::int64_t key = segment.begin; key < segment.end; ++key)
        if (!task.shape.is_causal || key <= query)
          ++result[static_cast<std::size_t>((segment.sequence * length + query) * length + key)];
  return result;
}

TEST(RingPiecesTest, CoverEachPairExactlyOnce) {
  EXPECT_TRUE(rc::check([] {
    const RingCase whole = random_case(40);
    const std::int64_t length = whole.task.shape.length;
    std::vector<int> seen(pairs_of(whole.task).size());
    for (int own = 0; own < whole.cp; ++own)
      for (int theirs = 0; theirs < whole.cp; ++theirs) {
        const auto query_positions = positions_in(positions_of(length, whole.cp, own)),
                   key_positions = positions_in(positions_of(length, whole.cp, theirs));
        for (const RingPiece& piece : ring_step_of(whole, own, theirs).pieces)
          for (std::int64_t i = 0; i < piece.queries.size(); ++i)
            for (std::int64_t j = 0; j < (piece.is_causal ? i + 1 : piece.keys.size()); ++j) {
              const std::int64_t query = piece.first_query + i, key = piece.first_key + j;
              RC_ASSERT(query_positions[static_cast<std::size_t>(piece.queries.begin + i)] == query);
              RC_ASSERT(key_positions[static_cast<std::size_t>(piece.keys.begin + j)] == key);
              ++seen[static_cast<std::size_t>((piece.sequence * length + query) * length + key)];
            }
      }
    RC_ASSERT(seen == pairs_of(whole.task));
  }));
}

bool overlap(const Span& a, const Span& b) { return a.begin < b.end && b.begin < a.end; }

// The ranges of the host kernel's threads: no two of them write to the same row.
TEST(RingPiecesTest, ThreadRangesAreDisjoint) {
  EXPECT_TRUE(rc::check([] {
    const RingCase whole = random_case(40);
    const std::vector<RingPiece> pieces =
        ring_step_of(whole, *rc::gen::inRange(0, whole.cp), *rc::gen::inRange(0, whole.cp)).pieces;
    const auto check = [&](const std::vector<Span>& ranges, auto is_common) {
      std::int64_t done = 0;
      for (const Span& range : ranges) {
        RC_ASSERT(range.begin == done && range.end > range.begin);
        done = range.end;
        for (std::int64_t i = range.begin; i < range.end; ++i)
          for (std::size_t j = static_cast<std::size_t>(range.end); j < pieces.size(); ++j)
            RC_ASSERT(!is_common(pieces[static_cast<std::size_t>(i)], pieces[j]));
      }
      RC_ASSERT(done == static_cast<std::int64_t>(pieces.size()));
    };
    check(pieces_by_queries(pieces), [](const RingPiece& a, const RingPiece& b) {
      return a.sequence == b.sequence && overlap(a.queries, b.queries);
    });
    check(independent_ranges(pieces), [](const RingPiece& a, const RingPiece& b) {
      return a.sequence == b.sequence && (overlap(a.queries, b.queries) || overlap(a.keys, b.keys));
    });
  }));
}

TEST(RingPiecesTest, WorkIsBalancedByCost) {
  EXPECT_TRUE(rc::check([] {
    const auto costs =
        *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(1, 1000));
    std::vector<int> done(costs.size());
    const std::int64_t total = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
    const std::int64_t largest = costs.empty() ? 0 : *std::max_element(costs.begin(), costs.end());
    std::atomic<std::int64_t> most = 0;
    parallel_for_by_cost(costs, [&](Span items) {
      std::int64_t cost = 0;
      for (std::int64_t i = items.begin; i < items.end; ++i)
        ++done[static_cast<std::size_t>(i)], cost += costs[static_cast<std::size_t>(i)];
      for (std::int64_t before = most; before < cost && !most.compare_exchange_weak(before, cost);) {
      }
    });
    RC_ASSERT(done == std::vector<int>(costs.size(), 1));
    // A range may differ by half an item at either end, the last one also by the remainder of the division.
    const std::int64_t threads = at::get_num_threads();
    RC_ASSERT(most <= total / threads + largest + threads ||
              costs.size() < static_cast<std::size_t>(threads));
  }));
}

TEST(RingPiecesTest, RingStepsAreFewRectangles) {
  const auto pieces = [](int own, int theirs, bool is_causal) {
    return ring_pieces(positions_of(12, 3, own), positions_of(12, 3, theirs), 1, 12, is_causal, {});
  };
  const std::vector<RingPiece> own{
      {0, {0, 2}, {0, 2}, true, 0, 0}, {0, {2, 4}, {0, 2}, false, 10, 0}, {0, {2, 4}, {2, 4}, true, 10, 10}};
  EXPECT_EQ(pieces(0, 0, true), own);
  const std::vector<RingPiece> later{{0, {2, 4}, {0, 2}, false, 10, 2}, {0, {2, 4}, {2, 4}, false, 10, 8}};
  EXPECT_EQ(pieces(0, 1, true), later);
  const std::vector<RingPiece> earlier{{0, {0, 2}, {0, 2}, false, 2, 0}, {0, {2, 4}, {0, 2}, false, 8, 0}};
  EXPECT_EQ(pieces(1, 0, true), earlier);
  const std::vector<RingPiece> middle{{0, {0, 4}, {0, 4}, true, 4, 4}};  // its two pieces are adjacent
  EXPECT_EQ(pieces(2, 2, true), middle);
  EXPECT_EQ(pieces(1, 0, false).size(), 4U);
}

// The data of one part. Rows after the last sequence are NaN: they must not be read.
struct Part {
  at::Tensor index;  // row indices in the whole
  at::Tensor q, k, v, dout, out, logsumexp, dq, dk, dv;

  std::int64_t num_rows() const { return index.numel(); }
};

at::Tensor select_rows(const at::Tensor& whole, const at::Tensor& index) {
  at::Tensor part = at::full({index.numel() + 2, whole.size(1), whole.size(2) + 3},
                             std::numeric_limits<double>::quiet_NaN(), whole.options());
  part = part.narrow(2, 1, whole.size(2));  // heads with gaps between them
  part.narrow(0, 0, index.numel()).copy_(whole.index_select(0, index));
  return part;
}

class Ring {
 public:
  Ring(const RingCase& whole, const RingAttention& attention, at::ScalarType type)
      : whole_(whole), attention_(attention), type_(type) {
    const AttentionShape& shape = whole.task.shape;
    const std::int64_t rows = shape.sequences * shape.length;
    for (const char* name : {"q", "k", "v", "dout"}) {
      const bool is_key = *name == 'k' || *name == 'v';
      given_[name] = random_tensor(name, {rows, is_key ? shape.kv_heads : shape.heads, shape.head_dim}, type);
    }
    for (int part = 0; part < whole.cp; ++part) parts_.push_back(make_part(part));
  }

  void run() {
    for (int own = 0; own < whole_.cp; ++own)
      for (int ring_step = 0; ring_step < whole_.cp; ++ring_step) {
        const int theirs = (own + whole_.cp - ring_step) % whole_.cp;
        Part &mine = at(own), &others = at(theirs);
        attention_.forward(ring_step_of(whole_, own, theirs), mine.q, others.k, others.v, mine.out,
                           mine.logsumexp);
      }
    for (int own = 0; own < whole_.cp; ++own)
      for (int theirs = 0; theirs < whole_.cp; ++theirs) {
        Part &mine = at(own), &others = at(theirs);
        attention_.backward(ring_step_of(whole_, own, theirs), mine.dout, mine.q, others.k, others.v,
                            mine.out.to(type_), mine.logsumexp, mine.dq, others.dk, others.dv);
      }
  }

  // The rows of all parts, assembled in fp64.
  at::Tensor whole(at::Tensor Part::*member) const {
    at::Tensor result;
    for (const Part& part : parts_) {
      const at::Tensor rows = in_double((part.*member).narrow(0, 0, part.num_rows()));
      if (!result.defined())
        result =
            at::zeros({whole_.task.shape.sequences * whole_.task.shape.length, rows.size(1), rows.size(2)},
                      at::kDouble);
      result.index_copy_(0, part.index, rows);
      EXPECT_EQ((part.*member).narrow(0, part.num_rows(), 2).isnan().all().item<bool>(), true);
    }
    return result;
  }
  // [sequences, heads, length], as [sequences * length, heads, 1] for whole().
  at::Tensor whole_logsumexp() const {
    const AttentionShape& shape = whole_.task.shape;
    at::Tensor result = at::zeros({shape.sequences * shape.length, shape.heads}, at::kDouble);
    for (const Part& part : parts_)
      result.index_copy_(0, part.index,
                         in_double(part.logsumexp).transpose(1, 2).reshape({part.num_rows(), shape.heads}));
    return result.unflatten(0, {shape.sequences, shape.length}).transpose(1, 2).contiguous();
  }
  at::Tensor given(const std::string& name) const { return in_double(given_.at(name)); }

 private:
  Part& at(int part) { return parts_[static_cast<std::size_t>(part)]; }

  Part make_part(int number) const {
    const AttentionShape& shape = whole_.task.shape;
    const std::vector<std::int64_t> positions = positions_in(positions_of(shape.length, whole_.cp, number));
    const auto length = static_cast<std::int64_t>(positions.size());
    Part part;
    part.index = at::empty({shape.sequences * length}, at::kLong);
    for (std::int64_t i = 0; i < part.num_rows(); ++i)
      part.index.data_ptr<std::int64_t>()[i] =
          i / length * shape.length + positions[static_cast<std::size_t>(i % length)];
    part.q = select_rows(given_.at("q"), part.index), part.k = select_rows(given_.at("k"), part.index);
    part.v = select_rows(given_.at("v"), part.index), part.dout = select_rows(given_.at("dout"), part.index);
    part.logsumexp = at::full({shape.sequences, shape.heads, length}, -kInfinity, wide_type(type_));
    const auto zero = [&](const at::Tensor& like) {
      at::Tensor result = like.to(wide_type(type_), false, true);
      result.narrow(0, 0, part.num_rows()).zero_();
      return result;
    };
    part.out = zero(part.q), part.dq = zero(part.q), part.dk = zero(part.k), part.dv = zero(part.v);
    return part;
  }

  const RingCase& whole_;
  const RingAttention& attention_;
  at::ScalarType type_;
  std::map<std::string, at::Tensor> given_;
  std::vector<Part> parts_;
};

// Rows are normally distributed and the scale keeps scores of order 1, so every term of a result is of order
// 1. Errors are relative to the largest result, or to 1 if the true gradient vanishes (a query that sees one
// key). Arithmetic is wide for all types, and 16-bit outputs are rounded on both sides before the backward. A
// score of size up to 8 that is a sum of 24 products has an error of about 10 units. Probabilities have that
// as their relative error, plus 2 units of the exponential and, for each of 5 ring steps, one rounding of a
// logsumexp of up to 10: sqrt(10^2 + 2^2 + 5 * 10^2) = 25 units if errors are independent. Sums over up to
// 300 keys, queries and 3 heads, whose errors are independent too, add less than twice that: 75 units of
// 2^-53 (8e-15) or 2^-24 (4.5e-6).
double ring_limit(at::ScalarType type) { return type == at::kDouble ? 1e-14 : 4.5e-6; }

double ring_difference(const at::Tensor& got, const at::Tensor& expected) {
  if (got.numel() == 0) return 0;
  return (got - expected).abs().max().item<double>() / std::max(1.0, expected.abs().max().item<double>());
}

// The largest error of all results, compared with plain attention over whole sequences.
double ring_error(const RingCase& whole, const RingAttention& attention, at::ScalarType type) {
  Ring ring(whole, attention, type);
  ring.run();
  const AttentionShape& shape = whole.task.shape;
  const auto plain = make_plain_attention();
  const at::Tensor q = ring.given("q"), k = ring.given("k"), v = ring.given("v"), dout = ring.given("dout");
  at::Tensor out = at::zeros_like(q), dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
  at::Tensor logsumexp = at::zeros({shape.sequences, shape.heads, shape.length}, at::kDouble);
  plain->forward(whole.task, q, k, v, out, logsumexp);
  const at::Tensor ring_out = ring.whole(&Part::out);
  plain->backward(whole.task, dout, q, k, v, in_double(ring_out.to(type)), logsumexp, dq, dk, dv);

  // Outside all segments: no key is seen, and gradients are exactly zero.
  at::Tensor is_covered = at::zeros({shape.sequences, shape.length}, at::kBool);
  for (const AttentionSegment& segment : segments_of(whole.task))
    is_covered.select(0, segment.sequence).narrow(0, segment.begin, segment.end - segment.begin).fill_(true);
  const at::Tensor statistics = ring.whole_logsumexp();
  const at::Tensor is_seen = is_covered.unsqueeze(1).expand_as(statistics);
  EXPECT_TRUE(at::equal(statistics.eq(-kInfinity), is_seen.logical_not()));
  const at::Tensor is_gap = is_covered.flatten().logical_not();
  for (at::Tensor Part::*member : {&Part::out, &Part::dq, &Part::dk, &Part::dv})
    EXPECT_EQ(ring.whole(member).abs().sum({1, 2}).mul(is_gap).sum().item<double>(), 0);

  double worst = ring_difference(statistics.masked_fill(is_seen.logical_not(), 0), logsumexp);
  worst = std::max(worst, ring_difference(ring_out, out));
  worst = std::max(worst, ring_difference(ring.whole(&Part::dq), dq));
  worst = std::max(worst, ring_difference(ring.whole(&Part::dk), dk));
  return std::max(worst, ring_difference(ring.whole(&Part::dv), dv));
}

struct Implementation {
  std::string name;
  std::unique_ptr<RingAttention> (*make)();
  std::int64_t longest;  // sequence length: several blocks
};

const std::vector<Implementation> kImplementations = {
    {"Plain", [] { return make_plain_ring_attention(); }, 40},
    {"PlainInBlocks", [] { return make_plain_ring_attention(2048); }, 40},
    {"Host", make_host_ring_attention, 300}};

class RingAttentionTest : public testing::TestWithParam<Implementation> {};
INSTANTIATE_TEST_SUITE_P(All, RingAttentionTest, testing::ValuesIn(kImplementations),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(RingAttentionTest, PartsTogetherMatchWholeAttention) {
  const auto attention = GetParam().make();
  EXPECT_TRUE(rc::check([&] {
    const RingCase whole = random_case(*rc::gen::element<std::int64_t>(20, 20, 20, GetParam().longest));
    const at::ScalarType type = *rc::gen::elementOf(kTypes);
    RC_ASSERT(ring_error(whole, *attention, type) <= ring_limit(type));
    RC_ASSERT(!testing::Test::HasFailure());
  }));
}

// A logsumexp that is far above or far below that of the next keys: nothing overflows, and the larger part
// dominates.
TEST_P(RingAttentionTest, LargeScores) {
  const auto attention = GetParam().make();
  const RingTask task{
      .shape = {.sequences = 1, .length = 2, .heads = 1, .kv_heads = 1, .head_dim = 1, .scale = 1},
      .own_length = 1,
      .key_length = 1,
      .pieces = {{.sequence = 0, .queries = {0, 1}, .keys = {0, 1}, .first_query = 1}},
      .dropout = {}};
  const auto one = [](double value) { return at::full({1, 1, 1}, value, at::kFloat); };
  for (const bool is_larger_first : {true, false}) {
    at::Tensor out = one(0), logsumexp = one(-kInfinity);
    for (const bool is_larger : {is_larger_first, !is_larger_first})
      attention->forward(task, one(1), one(is_larger ? 9000 : -9000), one(is_larger ? 3 : 5), out, logsumexp);
    EXPECT_EQ(out.item<float>(), 3);
    EXPECT_EQ(logsumexp.item<float>(), 9000);
  }
}

}  // namespace
}  // namespace optimus
