// optimus data prepare IN… --out PREFIX --tokenizer bytes|FILE
#include "cli/command.h"
#include "data/prepare.h"

#include "tokenizer/open_tokenizer.h"

namespace optimus {
namespace {

class DataPrepare final : public Command {
 public:
  void declare(OptionTable& table) override {
    table
        .add_positional("inputs", options_.inputs,
                        "text files, jsonl files (one document per line), or folders")
        .is_required = true;
    table.add("out", out_, "PREFIX", "write PREFIX.bin and PREFIX.idx in Megatron-LM's format").is_required =
        true;
    table.add("tokenizer", tokenizer_, "bytes|FILE",
              "the byte tokenizer, a tokenizer.json, or a folder that contains one");
    table.add("text-key", options_.text_key, "KEY", "key of the text in each jsonl line");
    optimus::declare(table, options_.filters);
    table.add("threads", options_.threads, "N", "number of tokenizer threads (0: one per core)");
  }

  int run(Console& console) override {
    if (options_.threads < 0 || options_.threads > 4096)
      throw UsageError("--threads: expected 0 to 4096, got {}", options_.threads);
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(tokenizer_);
    RealFileSystem files;
    const PrepareSummary summary = prepare_token_files(options_, *tokenizer, out_, files, console);
    OrderedJson json = to_json(summary);
    json["files"] = {out_.string() + ".bin", out_.string() + ".idx"};
    console.result(json, text(summary) + fmt::format("wrote      {0}.bin, {0}.idx\n", out_.string()));
    return 0;
  }

 private:
  PrepareOptions options_;
  Path out_;
  std::string tokenizer_ = "bytes";
};

}  // namespace

std::unique_ptr<Command> make_data_prepare_command() { return std::make_unique<DataPrepare>(); }

}  // namespace optimus
