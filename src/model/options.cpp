// See options.h.
#include "model/options.h"

#include "model/open.h"

namespace optimus {

void declare(OptionTable& table, ModelOptions& options) {
  ModelOverrides& o = options.overrides;
  table.add("model", options.model, "M",
            "a preset (gpt2, llama3-8b, …), a Hugging Face folder, or a config.json");
  table.add("layers", o.layers, "N", "override the number of layers");
  table.add("hidden", o.hidden, "N", "override the width of the residual stream");
  table.add("heads", o.heads, "N", "override the number of attention heads");
  table.add("kv-heads", o.kv_heads, "N", "override the number of key/value heads");
  table.add("head-dim", o.head_dim, "N",
            "override the head dimension (default: hidden / heads if either is overridden)");
  table.add("ffn", o.ffn, "N", "override the inner width of the feed-forward network");
  table.add("vocab", o.vocab, "N", "override the vocabulary size");
  table.add("max-positions", o.max_positions, "N", "override the maximum sequence length");
  table.add("tied", options.tied, "use the word embedding as the output projection");
  table.add("untied", options.untied, "use a separate matrix as the output projection");
}

ModelSpec resolve(const ModelOptions& options) {
  if (options.tied && options.untied)
    throw UserError("--tied and --untied contradict each other; use only one of them");
  ModelOverrides overrides = options.overrides;
  if (options.tied || options.untied) overrides.is_tied = options.tied;
  return with_overrides(open_model(options.model), overrides);
}

}  // namespace optimus
