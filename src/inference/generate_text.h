// Generates text with a trained model: encodes the prompt and decodes the generated tokens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/event.h"
#include "settings/inference_options.h"

namespace optimus {

struct GeneratedText {
  std::vector<std::int64_t> prompt_ids, ids;  // ids: the generated tokens
  std::string text;                           // the text of the generated tokens, as valid UTF-8
};

// Calls `on_text` for each new token with the text that has become complete (data/text_stream.h), and once
// more at the end. Throws UserError and the exceptions of on_text.
GeneratedText generate_text(const TextOptions& options,
                            const std::function<void(const std::string& text)>& on_text, EventSink& events);

}  // namespace optimus
