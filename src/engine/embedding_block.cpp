// The first block: the token, position and type tables, BERT's norm, and dropout. It has no input gradient.
// Under tensor parallelism, each device has some rows of the token table, and the first tensor-parallel rank
// adds the other tables. The sum over the tensor-parallel ranks is the embedding.
#include <ATen/TensorOperators.h>

#include "base/error.h"
#include "engine/block.h"

namespace optimus {
namespace {

class EmbeddingBlock final : public Block {
 public:
  EmbeddingBlock(const BlockServices& services, const TensorPart& part) : services_(services), part_(part) {}

  void forward(Part, const Pass& pass) override {
    const BlockViews& tables = *pass.weights;
    at::Tensor sum = part_.is_sequence_parallel ? pass["embedding.whole"] : sum_of(pass);
    const at::Tensor no_table;
    const bool adds_other_tables = part_.is_first();
    services_.kernels.embedding(own_ids(pass), pass.microbatch->positions, tables[kWords].weight,
                                adds_other_tables ? tables[kPositions].weight : no_table,
                                adds_other_tables ? tables[kTypes].weight : no_table, sum);
    if (part_.is_alone()) finish(pass);
  }

  void backward_input(Part, const Pass&) override { ensure(false, "the embedding has no input gradient"); }

  void backward_weight(Part, const Pass& pass) override {
    const BlockViews& tables = *pass.weights;
    at::Tensor word_embeddings = tables[kWords].gradient, positions, types;
    at::Tensor gradient = pass[part_.is_sequence_parallel ? "embedding.whole.gradient" : "output.gradient"];
    if (!part_.is_sequence_parallel) {
      begin_backward(pass);
      positions = tables[kPositions].gradient, types = tables[kTypes].gradient;
    }
    services_.kernels.embedding_backward(gradient, own_ids(pass), pass.microbatch->positions, word_embeddings,
                                         positions, types);
  }

  Exchange begin_exchange(const Instruction& collective, const Pass& pass) override {
    if (collective.op == Op::all_reduce) return {Exchange::Kind::sum, sum_of(pass), sum_of(pass)};
    const std::int64_t rows = part_.padded_slice(pass.microbatch->num_rows());
    if (collective.op == Op::reduce_scatter)
      return {Exchange::Kind::scatter, padded_to(pass["embedding.whole"], rows * part_.tp),
              padded_to(sum_of(pass), rows)};
    begin_backward(pass);
    const Span slice = part_.slice(pass.microbatch->num_rows());
    at::Tensor gradient = pass["output.gradient"], no_words, positions = (*pass.weights)[kPositions].gradient,
               types = (*pass.weights)[kTypes].gradient;
    const auto own_slice = [&](const at::Tensor& whole) {
      return whole.narrow(0, slice.begin, slice.size());
    };
    if (positions.defined() || types.defined())
      services_.kernels.embedding_backward(gradient, own_slice(pass.microbatch->ids),
                                           own_slice(pass.microbatch->positions), no_words, positions, types);
    return {Exchange::Kind::gather, padded_to(gradient, rows),
            padded_to(pass["embedding.whole.gradient"], rows * part_.tp)};
  }

  void end_exchange(const Instruction& collective, const Pass& pass) override {
    if (collective.op != Op::all_gather) finish(pass);
  }

 private:
  static constexpr const char *kWords = "embedding.words.weight", *kPositions = "embedding.positions.weight",
                              *kTypes = "embedding.token_types.weight", *kNorm = "embedding.norm.weight",
                              *kNormBias = "embedding.norm.bias";
  bool has_norm(const Pass& pass) const { return (*pass.weights)[kNorm].weight.defined(); }
  at::Tensor sum_of(const Pass& pass) const {
    return has_norm(pass) ? pass["embedding.norm.input"] : *pass.next_input;
  }

  // Computes the residual stream from the sum of the tables. Covers all tokens or, with sequence parallelism,
  // this device's slice of them.
  void finish(const Pass& pass) {
    at::Tensor y = *pass.next_input;
    if (has_norm(pass)) {
      at::Tensor statistics = pass["embedding.norm.statistics"];
      services_.kernels.norm(norm_options(), sum_of(pass), (*pass.weights)[kNorm].weight,
                             (*pass.weights)[kNormBias].weight, y, statistics);
    }
    if (const DropoutSite dropout = site(pass); dropout.rate > 0)
      services_.kernels.add(y, {}, {}, dropout, y);
  }
  void begin_backward(const Pass& pass) {
    at::Tensor gradient = pass["output.gradient"];
    if (const DropoutSite dropout = site(pass); dropout.rate > 0)
      services_.kernels.dropout_backward(gradient, dropout, gradient);
    if (!has_norm(pass)) return;
    WeightView norm = (*pass.weights)[kNorm], bias = (*pass.weights)[kNormBias];
    services_.kernels.norm_backward(norm_options(), gradient, pass["embedding.norm.input"], norm.weight,
                                    pass["embedding.norm.statistics"], {}, gradient, norm.gradient,
                                    bias.gradient);
  }

  // Returns row indices into this device's part of the token table. The index is -1 if another part has the
  // token.
  at::Tensor own_ids(const Pass& pass) const {
    const at::Tensor& ids = pass.microbatch->ids;
    if (part_.is_alone()) return ids;
    return (ids - part_.vocab.begin)
        .masked_fill_(ids.lt(part_.vocab.begin).logical_or(ids.ge(part_.vocab.end)), -1);
  }
  DropoutSite site(const Pass& pass) const {
    return dropout_site(pass, services_.model.embedding_dropout, -1, "embedding",
                        part_.slice(pass.microbatch->num_rows()).begin);
  }
  NormOptions norm_options() const { return {services_.model.norm, services_.model.norm_eps}; }

  const BlockServices& services_;
  const TensorPart part_;
};

}  // namespace

std::unique_ptr<Block> make_embedding_block(const BlockServices& services, const TensorPart& part) {
  return std::make_unique<EmbeddingBlock>(services, part);
}

}  // namespace optimus
