// See masking.h.
#include "data/masking.h"

#include <algorithm>

namespace optimus {

void mask_tokens(RandomKey key, const MaskingOptions& options, Sample& sample) {
  const auto is_special = [&](TokenId token) {
    return std::find(options.special_tokens.begin(), options.special_tokens.end(), token) !=
           options.special_tokens.end();
  };
  const RandomKey choice_key = key.derive("choose"), action_key = key.derive("act");
  const RandomKey replacement_key = key.derive("replace");
  std::vector<std::size_t> positions;
  // The position with the smallest draw. It is chosen if no draw is below options.chosen_fraction.
  std::size_t smallest = sample.inputs.size();
  double smallest_draw = 2;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    if (is_special(sample.inputs[i])) continue;
    const double draw = random_uniform(choice_key, i);
    if (draw < options.chosen_fraction) positions.push_back(i);
    if (draw < smallest_draw) smallest = i, smallest_draw = draw;
  }
  if (positions.empty() && smallest < sample.inputs.size()) positions.push_back(smallest);

  std::fill(sample.targets.begin(), sample.targets.end(), kNoTarget);
  for (const std::size_t i : positions) {
    sample.targets[i] = sample.inputs[i];
    const double draw = random_uniform(action_key, i);
    if (draw < 0.8) {
      sample.inputs[i] = options.mask_token;
    } else if (draw < 0.9) {
      TokenId random = sample.inputs[i];
      // If the drawn token is special, another one is drawn. If all attempts draw special tokens, the input
      // remains unchanged.
      for (std::uint64_t attempt = 0; attempt < 64; ++attempt) {
        random = static_cast<TokenId>(
            random_below(replacement_key.derive(i), attempt, static_cast<std::uint64_t>(options.vocab_size)));
        if (!is_special(random)) break;
        random = sample.inputs[i];
      }
      sample.inputs[i] = random;
    }
  }
  sample.num_targets = static_cast<std::int64_t>(positions.size());
}

}  // namespace optimus
