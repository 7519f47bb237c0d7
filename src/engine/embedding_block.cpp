// The first block: token, position and type tables, BERT's norm, dropout. It has no input gradient.
#include "base/error.h"
#include "engine/block.h"

namespace optimus {
namespace {

class EmbeddingBlock final : public Block {
 public:
  EmbeddingBlock(const Tools& tools, const Parameters& parameters) : tools_(tools) {
    const auto table = [&](const std::string& name) {
      return Table{parameters.weight(name), parameters.gradient(name)};
    };
    tokens_ = table("embedding.words.weight"), positions_ = table("embedding.positions.weight");
    types_ = table("embedding.token_types.weight");
    norm_weight_ = table("embedding.norm.weight"), norm_bias_ = table("embedding.norm.bias");
  }

  void forward(Part, const Pass& pass) override {
    at::Tensor ids = pass["embedding.ids"], y = *pass.next;
    ids.copy_(pass.microbatch->ids.unsqueeze(1));
    const bool has_norm = norm_weight_.weight.defined();
    at::Tensor sum = has_norm ? pass["embedding.norm.input"] : y;
    tools_.kernels.embedding(pass.microbatch->ids, pass.microbatch->positions, tokens_.weight,
                             positions_.weight, types_.weight, sum);
    if (has_norm) {
      at::Tensor statistics = pass["embedding.norm.statistics"];
      tools_.kernels.norm(norm_options(), sum, norm_weight_.weight, norm_bias_.weight, y, statistics);
    }
    if (const DropoutSite dropout = site(pass); dropout.rate > 0) tools_.kernels.add(y, {}, {}, dropout, y);
  }

  void backward_input(Part, const Pass&) override { ensure(false, "the embedding has no input gradient"); }

  void backward_weight(Part, const Pass& pass) override {
    at::Tensor gradient = pass["output.gradient"];
    if (const DropoutSite dropout = site(pass); dropout.rate > 0)
      tools_.kernels.dropout_backward(gradient, dropout, gradient);
    if (norm_weight_.weight.defined())
      tools_.kernels.norm_backward(norm_options(), gradient, pass["embedding.norm.input"],
                                   norm_weight_.weight, pass["embedding.norm.statistics"], {}, gradient,
                                   norm_weight_.gradient, norm_bias_.gradient);
    tools_.kernels.embedding_backward(gradient, pass["embedding.ids"].squeeze(1), pass.microbatch->positions,
                                      tokens_.gradient, positions_.gradient, types_.gradient);
  }

 private:
  struct Table {
    at::Tensor weight, gradient;
  };
  DropoutSite site(const Pass& pass) const {
    return dropout_site(pass, tools_.model.embedding_dropout, -1, "embedding");
  }
  NormOptions norm_options() const { return {tools_.model.norm, tools_.model.norm_eps}; }

  const Tools& tools_;
  Table tokens_, positions_, types_, norm_weight_, norm_bias_;
};

}  // namespace

std::unique_ptr<Block> make_embedding_block(const Tools& tools, const Parameters& parameters) {
  return std::make_unique<EmbeddingBlock>(tools, parameters);
}

}  // namespace optimus
