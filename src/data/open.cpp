// See open.h.
#include "data/open.h"

#include <algorithm>

#include "data/megatron_file.h"
#include "data/prepare.h"

namespace optimus {
namespace {

bool path_exists(const Path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// "corpus", "corpus.bin" and "corpus.idx" all refer to the prefix "corpus" if an index exists.
std::optional<Path> megatron_prefix(const Path& path) {
  if (path_exists(with_extension(path, ".idx"))) return path;
  if (path.extension() != ".bin" && path.extension() != ".idx") return std::nullopt;
  Path prefix = path;
  prefix.replace_extension();
  return path_exists(with_extension(prefix, ".idx")) ? std::optional(prefix) : std::nullopt;
}

std::vector<Path> llmc_shards(const Path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error))
    return path.extension() == ".bin" && is_llmc_shard(path) ? std::vector{path} : std::vector<Path>{};
  std::vector<Path> shards;
  for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".bin" && is_llmc_shard(at->path())) shards.push_back(at->path());
  std::sort(shards.begin(), shards.end());
  return shards;
}

}  // namespace

bool is_tokenized(const std::string& name) { return megatron_prefix(name) || !llmc_shards(name).empty(); }

std::shared_ptr<const TokenSet> open_data(const std::string& name, const Tokenizer& tokenizer,
                                          EventSink& events) {
  if (const auto prefix = megatron_prefix(name)) return open_megatron(*prefix);
  if (const auto shards = llmc_shards(name); !shards.empty()) return open_llmc(shards);
  if (Path(name).extension() == ".bin")
    throw UserError("{}: expected an llm.c shard or a file of a Megatron .bin/.idx pair", name);
  if (!path_exists(name))
    throw UserError(
        "{} does not exist; expected a text file, a jsonl file, a folder, or the prefix of token files "
        "(NAME.bin, NAME.idx)",
        name);
  std::vector<TokenId> tokens;
  std::vector<std::int64_t> starts;
  PrepareOptions options;
  options.inputs = {name};
  tokenize_documents(options, tokenizer, events, [&](std::vector<TokenId> document) {
    starts.push_back(std::ssize(tokens));
    tokens.insert(tokens.end(), document.begin(), document.end());
  });
  if (tokens.empty()) throw UserError("{} contains no text", name);
  return tokens_in_memory(std::move(tokens), std::move(starts));
}

}  // namespace optimus
