// optimus explain PLAN [--program --rank R] [--timeline] [--export T --out DIR]: describes a plan in words
// and drawings, or writes it for another trainer.

#include "cli/command.h"
#include "cli/plan_export.h"
#include "model/options.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "plan/validate.h"
#include "schedule/picture.h"
#include "schedule/program.h"

namespace optimus {
namespace {

std::string memory_text(const MemoryUse& memory) {
  return fmt::format("memory: weights {}, gradients {}, optimizer {}, activations {}, buffers {}; peak {}\n",
                     text(memory.weights), text(memory.gradients), text(memory.optimizer),
                     text(memory.activations), text(memory.buffers), text(memory.peak));
}

OrderedJson memory_json(const MemoryUse& memory) {
  return {{"weights", memory.weights.value},     {"gradients", memory.gradients.value},
          {"optimizer", memory.optimizer.value}, {"activations", memory.activations.value},
          {"buffers", memory.buffers.value},     {"peak", memory.peak.value}};
}

class Explain final : public Command {
 public:
  void declare(OptionTable& table) override {
    table.add_positional("plan", plan_, "plan file").is_required = true;
    table.add("program", wants_program_, "print the step program of one device");
    table.add("rank", rank_, "R",
              "with --program: device whose program is printed (default: the plan's first device)");
    table.add("timeline", wants_timeline_,
              "draw the step in units of time (forward pass: 1, backward pass: 2)");
    optimus::declare(table, model_);
    optimus::declare(table, export_);
  }

  int run(Console& console) override {
    const Plan plan = read_plan(plan_);
    OrderedJson json = {{"plan", to_json(plan)},
                        {"hash", plan_hash(plan)},
                        {"text", short_text(plan)},
                        {"devices", num_devices(plan)}};
    std::string output;
    if (!wants_program_ && !wants_timeline_) output = picture(plan);
    if (wants_program_) explain_program(plan, json, output);
    if (wants_timeline_) {
      output += draw_timeline(plan, terminal_columns(160) - 11);
      for (const Pipeline& pipeline : plan.pipelines)
        json["bubble"].push_back(unit_times(plan.schedule, static_cast<int>(pipeline.stages.size()),
                                            static_cast<int>(pipeline.microbatches.size()),
                                            static_cast<int>(pipeline.stages.front().chunks.size()))
                                     .bubble());
    }
    if (!export_.trainer.empty()) output += "\n" + export_if_requested(export_, plan, model_of(plan), json);
    console.result(json, output);
    return 0;
  }

 private:
  ModelSpec model_of(const Plan& plan) const {
    ModelOptions options = model_;
    if (options.model.empty()) options.model = plan.model;
    if (options.model.empty())
      throw UserError("{}: the plan does not name its model; pass --model M", plan_.string());
    if (!options.overrides.layers) options.overrides.layers = plan.num_blocks - 2;
    ModelSpec model = resolve(options);
    validate(plan, model, plan_.string());
    return model;
  }

  void explain_program(const Plan& plan, OrderedJson& json, std::string& output) {
    const ModelSpec model = model_of(plan);
    const Program program =
        compile(plan, model, rank_.value_or(plan.pipelines.front().stages.front().devices.front()));
    output += text(program) + memory_text(memory_use(program));
    json["program"] = {{"device", program.device},
                       {"instructions", program.instructions.size()},
                       {"memory_bytes", memory_json(memory_use(program))}};
    for (const Instruction& at : program.instructions)
      json["program"]["list"].push_back({{"lane", text(at.lane)},
                                         {"op", text(at.op)},
                                         {"block", at.block},
                                         {"micro_batch", at.microbatch},
                                         {"bytes", at.bytes}});
  }

  Path plan_;
  bool wants_program_ = false, wants_timeline_ = false;
  std::optional<int> rank_;
  ModelOptions model_;
  PlanExportOptions export_;
};

}  // namespace

std::unique_ptr<Command> make_explain_command() { return std::make_unique<Explain>(); }

}  // namespace optimus
