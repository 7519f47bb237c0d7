// StepMeter: what one rank's instructions took, step by step, added up until somebody collects it as a RankStep.
//
//   StepMeter meter(program, plan, model, predicted);
//   for each step: meter.observe({seconds, data_wait}, times);
//   …                                                       // now and then, all ranks after the same step
//   const RankStep mean = meter.take();
//
// Of messages and collectives only the quickest of a step counts, of those at least half as large as the largest: the others may have
// waited for their partners, and no clock is shared that could tell. Pure; one thread at a time.
#pragma once

#include <vector>

#include "adapt/observation.h"
#include "model/spec.h"
#include "schedule/program.h"
#include "simulate/instruction_time.h"

namespace optimus {

// Stages counted through all pipelines, as Topology does.
int group_of(const Plan& plan, const Seat& seat);
// Bytes that a device sends in a collective or message, as rings do it.
double bytes_on_the_wire(const Instruction& at, const Group* group);
BlockRole role_of(const ModelSpec& model, int block);
// Forward, recompute, backward: what counts as computing.
bool is_computing(Op op);

// [instruction]: of those that compute the first of its span, whose instructions follow each other, are of one kind and one kind of block, and
// wait for nobody but each other; -1: it does not compute. A span can be timed as one.
std::vector<int> computing_spans(const Program& program, const ModelSpec& model);

struct MeasuredStep {
  double seconds = 0, data_wait = 0;
  // Of lengths that attention saw: those of the rank, and what as many sequences of the whole step had; 0: nobody knows.
  double squares = 0, usual_squares = 0;
  std::int64_t sequences = 0, tokens = 0;  // of the rank, without padding
};

class StepMeter {
 public:
  // predicted: seconds of each instruction by the cost model; empty: nobody knows. Copies what it needs.
  StepMeter(const Program& program, const Plan& plan, const ModelSpec& model, std::vector<double> predicted);

  // Without times of instructions only the step counts; of some steps they may be there, of others not.
  void observe(const MeasuredStep& step, const std::vector<InstructionTime>& times);
  // Of a message or collective of a program: whom it joins, and its bytes; 0: it is none.
  std::pair<Channel, double> message(std::size_t instruction) const {
    const Known& known = known_[instruction];
    return {known.channel, known.is_message ? known.bytes : 0};
  }
  // [instruction]: whether it is one of those.
  std::vector<bool> messages() const;
  bool is_empty() const { return num_steps_ == 0; }
  // The mean of the steps since the last call, of instructions of those that have their times; computing as if all ranks of the stage had as
  // much of the batch. There must be some.
  RankStep take();

 private:
  struct Known {
    bool is_counted = false;
    WorkKind kind = WorkKind::forward;
    bool is_compute = false, is_message = false;
    BlockRole role = BlockRole::layer;
    Channel channel = Channel::data;
    double bytes = 0, predicted = 0;
  };
  Known known_of(const Program& program, const Plan& plan, const ModelSpec& model, const Instruction& at,
                 double predicted) const;
  void add_links(const std::vector<InstructionTime>& times);

  RankStep sum_;
  std::vector<Known> known_;                   // [instruction]
  std::array<double, kChannels> largest_{};    // bytes
  std::array<int, kChannels> num_measured_{};  // steps
  int num_steps_ = 0, num_timed_ = 0;
  double work_ = 0;  // of the steps with times, where there are some
  double part_ = 1;  // of what the first rank of the stage has to compute
  // Flops: of a step for what every token takes, and for a square of a length.
  double linear_ = 0, attention_ = 0;
};

}  // namespace optimus
