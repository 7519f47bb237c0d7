// Text from a trained model: the prompt to tokens, tokens to text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/event.h"
#include "settings/inference_options.h"

namespace optimus {

struct GeneratedText {
  std::vector<std::int64_t> prompt_ids, ids;  // ids: the new ones
  std::string text;                           // of the new ones: valid UTF-8
};

// on_text is called for each new token with what can be shown of it (data/text_stream.h), and once more at the end. Throws
// UserError, and what on_text throws.
GeneratedText generate_text(const TextOptions& options,
                            const std::function<void(const std::string& text)>& on_text, EventSink& events);

}  // namespace optimus
