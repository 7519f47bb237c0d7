// optimus data inspect PREFIX
#include "cli/command.h"
#include "data/open.h"
#include "data/profile.h"
#include "data/samples.h"

namespace optimus {
namespace {

class DataInspect final : public Command {
 public:
  void declare(OptionTable& table) override {
    table
        .add_positional("prefix", prefix_,
                        "prefix of the token files PREFIX.bin and PREFIX.idx, or of llm.c shards")
        .is_required = true;
    table.add("seq", sequence_length_, "N", "sequence length for the packing statistics");
    table.add("document", document_, "N",
              "also print the tokens of document N (documents are numbered from 0)");
  }

  int run(Console& console) override {
    if (sequence_length_ < 1 || sequence_length_ > kMaxSequenceLength)
      throw UsageError("--seq: expected 1 to {}, got {}", kMaxSequenceLength, sequence_length_);
    if (!is_tokenized(prefix_))
      throw UserError("{0}: {0}.idx does not exist; expected the prefix of token files", prefix_);
    const std::unique_ptr<Tokenizer> unused_tokenizer = byte_tokenizer();
    const auto tokens = open_data(prefix_, *unused_tokenizer, console);
    const DatasetProfile profile = profile_data(*tokens, sequence_length_, prefix_);
    OrderedJson json = to_json(profile);
    std::string output = text(profile);
    if (document_) {
      if (*document_ < 0 || *document_ >= tokens->num_documents())
        throw UserError("--document: no document {}; the data has {} documents, numbered from 0", *document_,
                        tokens->num_documents());
      const std::int64_t begin = tokens->document_start(*document_),
                         end = tokens->document_start(*document_ + 1);
      std::vector<TokenId> ids(static_cast<std::size_t>(end - begin));
      tokens->read(begin, ids);
      json["document"] = {{"number", *document_}, {"ids", ids}};
      output += fmt::format("document {}: {}\n", *document_, fmt::join(ids, " "));
    }
    console.result(json, output);
    return 0;
  }

 private:
  std::string prefix_;
  std::int64_t sequence_length_ = 1024;
  std::optional<std::int64_t> document_;
};

}  // namespace

std::unique_ptr<Command> make_data_inspect_command() { return std::make_unique<DataInspect>(); }

}  // namespace optimus
