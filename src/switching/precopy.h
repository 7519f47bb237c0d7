// Pre-copy: part of the state that a change of plan moves is sent early, while the last step before the change computes, so that less is
// left to send while training stands still. Masters and moments do not change until that step's update; what it changes of them is worked
// out again from its reduced gradient, 4 bytes an element instead of 12, by the same kernel on the same values: the same bits.
//
//   step t     forward, backward ──────────────▶ gate   update      ┃ pause
//   sender     masters, moments of t - 1 ──▶ close()                ┃ gradients of t ──▶
//   receiver   ──▶ into the new plan's buffers                      ┃ ──▶ repeats the update on what came early
//
// Masters that lie apart from moments (fp32, fp64) need no gradient: they follow from moments of t where the receiver has these, and are
// sent early only there. A thread of each rank sends and receives, in rounds of one message with each peer; what has gone when the gate
// comes is a number of whole messages that both ends know. Nothing of the old plan's state is changed, so a failure harms nobody.
// StateMover (move.h) has one of these, and moves the rest.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm.h"
#include "engine/engine.h"
#include "switching/early_rows.h"
#include "switching/state_views.h"

namespace optimus {

struct PrecopyOptions {
  Seconds patience{600};   // for any one message
  Bytes message{1 << 18};  // about; the same on all ranks
  // Of the time, at most, that messages are under way in. The step needs the link and the processor too: it was seen to lose about half
  // of that time, and more where processors are busy.
  double share = 0.1;
};

// What all ranks have agreed on.
struct PrecopyTerms {
  int epoch = 0;                 // to come, prepared
  std::size_t num_waves = 0;     // so many of the change's first ones; 0: nothing is sent early
  std::int64_t num_updates = 0;  // that the state is of
};

struct PrecopyFacts {
  const PlanChange& change;
  const RankShare& share;
  MoveEnds ends;
  std::vector<int> blocks;  // new ones that things come into, not yet held
  Comm& comm;
};

class Precopy {
 public:
  // Begins, on a thread. All must outlive this.
  Precopy(const PrecopyFacts& facts, const PrecopyTerms& terms, const PrecopyOptions& options);
  // Closes, and waits for the thread.
  ~Precopy();

  // Behind this nothing of the old plan's state is read. From any thread.
  void close();
  // Closes, and waits. Why it failed; empty: it did not. Then, and only then, the following may be called.
  std::string end();

  // What has gone of an operation's box: rows, all others are to be moved. Empty: nothing.
  Box gone(const RankShare::Operation& operation) const;
  // In the pause, by all ranks; gradients of the step are where it left them. `num_updates` as they are now: one more than the terms say,
  // or as many, where the step had no update. Throws PeersLost.
  void repeat_update(const UpdateFacts& update, std::int64_t num_updates);
  // When the new plan's moments are complete.
  void repeat_masters();

  Bytes received() const { return received_; }              // early
  Bytes received_again() const { return received_again_; }  // in the pause, because of it

 private:
  struct Slice {
    const RankShare::Operation* of = nullptr;
    Box box;
  };
  using Message = std::vector<Slice>;
  struct Stream {
    int peer = 0;
    bool is_send = false;
    std::vector<Message> messages{};
    std::size_t num_gone = 0;
    bool is_over = false;
  };
  struct Turn;
  struct Exchange;
  void plan_streams();
  void run();
  std::optional<Seconds> run_round();
  std::unique_ptr<Pending> start(const Stream& stream, const at::Tensor& values, int tag);
  void wait(Pending& pending) const;
  at::Tensor staged(const Message& message);
  void put(const Message& message, const at::Tensor& values);
  void pause_after(Seconds round);
  void note_gone();
  std::vector<Exchange> begin_gradients(std::size_t round);
  void end_gradients(std::vector<Exchange> exchanges);
  void repeat(const Slice& slice, const at::Tensor& gradient);
  void update(const std::string& name, AdamOptions options, const at::Tensor& gradient,
              const std::vector<at::Tensor>& state);

  const PrecopyFacts facts_;
  const PrecopyTerms terms_;
  const PrecopyOptions options_;
  const StateViews views_;
  const ElementTypes types_;
  const std::unique_ptr<Kernels> kernels_;
  std::vector<Stream> streams_;
  std::map<const RankShare::Operation*, Box> gone_;
  Bytes received_, received_again_;
  bool has_update_ = false;  // to repeat
  UpdateOptions update_;
  at::Tensor numbers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  std::string failure_;  // the thread's
  std::thread thread_;   // last: it uses all the others
};

}  // namespace optimus
