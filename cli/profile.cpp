// optimus profile [--model M] [--data D] [--hardware]: describes a model, a data set and this machine.
#include "data/profile.h"
#include "checkpoint/open_model.h"
#include "cli/command.h"
#include "cli/training.h"
#include "data/open.h"
#include "data/samples.h"
#include "model/options.h"
#include "model/profile.h"

#include "tokenizer/open_tokenizer.h"

namespace optimus {
namespace {

class Profile final : public Command {
 public:
  void declare(OptionTable& table) override {
    optimus::declare(table, model_);
    table.add("data", data_, "D", "text file, jsonl file, folder, or prefix of token files");
    table.add("tokenizer", tokenizer_, "bytes|FILE",
              "tokenizer for the text (default: the one in the model's folder if present, otherwise bytes)");
    table.add("seq", sequence_length_, "N", "sequence length (default: the model's maximum, at most 8192)");
    optimus::declare(table, hardware_);
  }

  int run(Console& console) override {
    if (model_.model.empty() && data_.empty() && !hardware_.measures_devices && !hardware_.measures_links)
      throw UsageError("nothing to profile; pass --model M, --data D, --hardware or --links");
    if (sequence_length_ && (*sequence_length_ < 1 || *sequence_length_ > kMaxSequenceLength))
      throw UsageError("--seq: expected 1 to {}, got {}", kMaxSequenceLength, *sequence_length_);
    model_.model = model_path_of(model_.model);
    OrderedJson json;
    std::string output;
    std::int64_t sequence_length = sequence_length_.value_or(1024);
    if (!model_.model.empty()) {
      const ModelSpec spec = resolve(model_);
      if (!sequence_length_) sequence_length = default_sequence_length(spec);
      const ModelProfile profile = profile_model(spec, sequence_length);
      json["model"] = to_json(profile);
      output += text(profile);
    }
    if (!data_.empty()) {
      const std::unique_ptr<Tokenizer> tokenizer =
          open_tokenizer(tokenizer_.empty() ? default_tokenizer(model_.model) : tokenizer_);
      const DatasetProfile profile =
          profile_data(*open_data(data_, *tokenizer, console), sequence_length, data_);
      json["data"] = to_json(profile);
      output += (output.empty() ? "" : "\n") + text(profile);
    }
    if (hardware_.measures_links) {
      const LinksReport links = report_links(hardware_, console);
      if (!links.output) return links.code;  // only rank 0 prints
      json["hardware"] = links.output->json;
      output += (output.empty() ? "" : "\n") + links.output->text;
    } else if (hardware_.measures_devices) {
      const HardwareReport hardware = report_hardware(hardware_, console);
      json["hardware"] = hardware.json;
      output += (output.empty() ? "" : "\n") + hardware.text;
    }
    console.result(json, output);
    return 0;
  }

 private:
  ModelOptions model_;
  ProbeOptions hardware_;
  std::string data_, tokenizer_;
  std::optional<std::int64_t> sequence_length_;
};

}  // namespace

std::unique_ptr<Command> make_profile_command() { return std::make_unique<Profile>(); }

}  // namespace optimus
