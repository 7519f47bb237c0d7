// StepMeter: sums the times of one rank's instructions over several steps and returns the mean as a RankStep.
//
//   StepMeter meter(program, plan, model, predicted);
//   for each step: meter.observe({seconds, data_wait}, times);
//   …                                         // from time to time, on all ranks after the same step
//   const RankStep mean = meter.take();
//
// The speed of a channel in a step is the speed of its fastest message or collective of at least half the
// maximum size. The times of other messages may include waiting for peers, which cannot be measured without a
// shared clock. Pure; one thread at a time.
#pragma once

#include <vector>

#include "adapt/observation.h"
#include "model/spec.h"
#include "schedule/program.h"
#include "simulate/instruction_time.h"

namespace optimus {

// The index of the stage, with the stages of all pipelines numbered consecutively, as in Topology.
int group_of(const Plan& plan, const PlanLocation& location);
// The number of bytes that one device sends for a message, or for a collective with a ring algorithm.
double bytes_on_the_wire(const Instruction& instruction, const Group* group);
BlockRole role_of(const ModelSpec& model, int block);
// Whether the instruction is forward, recompute or backward.
bool is_computing(Op op);

// Returns the first instruction of each instruction's span, or -1 for instructions that do not compute. The
// instructions of a span are consecutive, do the same kind of work on the same kind of block, and wait only
// for each other. So a span can be timed as a whole.
std::vector<int> computing_spans(const Program& program, const ModelSpec& model);

struct MeasuredStep {
  double seconds = 0, data_wait = 0;
  // The sum of squared lengths of this rank's sequences, and the average of this sum over all ranks, scaled
  // to this rank's number of sequences. 0 if unknown.
  double squares = 0, expected_squares = 0;
  std::int64_t sequences = 0, tokens = 0;  // of this rank, without padding
};

class StepMeter {
 public:
  // `predicted` contains the seconds that the cost model predicts for each instruction, or is empty if
  // unknown. The meter keeps no references to its arguments.
  StepMeter(const Program& program, const Plan& plan, const ModelSpec& model, std::vector<double> predicted);

  // `times` is empty if the instructions of this step were not timed.
  void observe(const MeasuredStep& step, const std::vector<InstructionTime>& times);
  // The channel and the size in bytes of a message or collective. The size is 0 for other instructions.
  std::pair<Channel, double> message(std::size_t instruction) const {
    const InstructionInfo& info = infos_[instruction];
    return {info.channel, info.is_message ? info.bytes : 0};
  }
  // Returns for each instruction whether it is a message or a collective.
  std::vector<bool> messages() const;
  bool is_empty() const { return num_steps_ == 0; }
  // Returns the mean over the steps since the last call. There must be at least one step. Instruction times
  // are averaged only over timed steps. Compute times are scaled as if all ranks of the stage had equal
  // shares of the batch.
  RankStep take();

 private:
  struct InstructionInfo {
    bool is_counted = false;
    WorkKind kind = WorkKind::forward;
    bool is_compute = false, is_message = false;
    BlockRole role = BlockRole::layer;
    Channel channel = Channel::data;
    double bytes = 0, predicted = 0;
  };
  InstructionInfo info_of(const Program& program, const Plan& plan, const ModelSpec& model,
                          const Instruction& instruction, double predicted) const;
  void add_links(const std::vector<InstructionTime>& times);

  RankStep sum_;
  std::vector<InstructionInfo> infos_;         // [instruction]
  std::array<double, kChannels> largest_{};    // bytes
  std::array<int, kChannels> num_measured_{};  // steps
  int num_steps_ = 0, num_timed_ = 0;
  double relative_work_ = 0;  // of timed steps; of all steps if none was timed
  double token_ratio_ = 1;    // this rank's share of the tokens, relative to that of the stage's first rank
  // `linear_`: FLOPs per step that are proportional to the number of tokens. `attention_`: FLOPs per unit of
  // squared sequence length.
  double linear_ = 0, attention_ = 0;
};

}  // namespace optimus
