// Pre-copy sends part of the state that a plan change moves while the last step before the change is
// computed, which shortens the pause. Masters and moments do not change until that step's update. The
// receiver then repeats the update from the reduced gradient, which takes 4 bytes per element instead of 12.
// It uses the same kernel on the same values, so the result is bit-identical.
//
//   step t     forward, backward ─────────────▶ gate   update      ┃ pause
//   sender     masters, moments of t - 1 ──▶ close()               ┃ gradients of t ──▶
//   receiver   ──▶ into the new plan's buffers                     ┃ ──▶ repeats the update on early state
//
// Masters that are stored apart from moments (fp32, fp64) need no gradient, because the receiver computes
// them from the moments of step t. They are sent early only if the receiver has these moments. One thread per
// rank sends and receives in rounds of one message per peer. At the step gate, only whole messages have been
// sent, and both ends know how many. The old plan's state is not modified, so a failure is harmless.
// StateMover (move.h) owns a Precopy and moves the remaining state.
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
#include "switching/precopy_rows.h"
#include "switching/state_views.h"

namespace optimus {

struct PrecopyOptions {
  Seconds timeout{600};    // for each message
  Bytes message{1 << 18};  // approximate size of a message, the same on all ranks
  // Maximum fraction of time in which messages are in flight. The step also needs the link and the CPU. In
  // measurements it lost about half of that time, and more if CPUs were busy.
  double max_link_share = 0.1;
};

// The terms that all ranks agreed on.
struct PrecopyTerms {
  int epoch = 0;  // the future epoch, which the Comm has prepared
  // Number of the change's first waves that are sent early; 0 if no state is sent early.
  std::size_t num_waves = 0;
  std::int64_t num_updates = 0;  // number of optimizer updates that the sent state includes
};

struct PrecopyContext {
  const PlanChange& change;
  const RankShare& share;
  MoveEnds ends;
  std::vector<int> blocks;  // new blocks that receive data and are not allocated yet
  Comm& comm;
};

class Precopy {
 public:
  // Starts the thread. The objects that `context` refers to must outlive this object.
  Precopy(const PrecopyContext& context, const PrecopyTerms& terms, const PrecopyOptions& options);
  // Calls close() and joins the thread.
  ~Precopy();

  // After this call, the old plan's state is no longer read. Thread-safe.
  void close();
  // Calls close() and joins the thread. Returns why pre-copy failed, or an empty string if it succeeded. The
  // following functions may be called only after success.
  std::string end();

  // Returns the rows of an operation's box that were sent early; empty if none were. StateMover must move the
  // other rows.
  Box sent_rows(const RankShare::Operation& operation) const;
  // Called by all ranks during the pause, while the gradients of the step are unchanged. `num_updates` is the
  // current number of updates. It is one more than in the terms, or equal if the step performed no update.
  // Throws PeersLost.
  void repeat_update(const UpdateRecord& update, std::int64_t num_updates);
  // Called when the new plan's moments are complete.
  void repeat_masters();

  Bytes received() const { return received_; }  // before the pause
  // Bytes of gradients received during the pause.
  Bytes gradients_received() const { return gradients_received_; }

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
    std::size_t num_sent = 0;
    bool has_ended = false;
  };
  struct Turn;
  struct Exchange;
  void plan_streams();
  void run();
  std::optional<Seconds> run_round();
  std::unique_ptr<Pending> start(const Stream& stream, const at::Tensor& values, int tag);
  void wait(Pending& pending) const;
  at::Tensor staging_copy(const Message& message);
  void store_received(const Message& message, const at::Tensor& values);
  void pause_after(Seconds round);
  void record_sent_rows();
  std::vector<Exchange> begin_gradients(std::size_t round);
  void end_gradients(std::vector<Exchange> exchanges);
  void repeat(const Slice& slice, const at::Tensor& gradient);
  void update(const std::string& name, AdamOptions options, const at::Tensor& gradient,
              const std::vector<at::Tensor>& state);

  const PrecopyContext context_;
  const PrecopyTerms terms_;
  const PrecopyOptions options_;
  const StateViews views_;
  const ElementTypes types_;
  const std::unique_ptr<Kernels> kernels_;
  std::vector<Stream> streams_;
  std::map<const RankShare::Operation*, Box> sent_rows_;
  Bytes received_, gradients_received_;
  bool has_update_ = false;  // whether there is an update to repeat
  UpdateOptions update_;
  at::Tensor step_scalars_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  std::string failure_;  // why the thread failed; empty if it did not
  std::thread thread_;   // declared last, because it uses all members above
};

}  // namespace optimus
