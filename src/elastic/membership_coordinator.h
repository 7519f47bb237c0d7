// Tracks the members of a run and its plan across membership generations, in the process that hosts the run's
// store. Produces the MembershipChange that all ranks apply. Does not start or stop processes, and leaves the
// communication with ranks to emergency_checkpoint_host.h.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "elastic/membership_change.h"
#include "model/spec.h"
#include "recovery/recovery_costs.h"
#include "recovery/repair.h"
#include "rundir/board.h"
#include "rundir/worker_protocol.h"

namespace optimus {

// A process's request to join the run. It is stored under a number that the process obtained from a counter
// in the run's store.
struct WorkerJoinRequest {
  int pid = 0;
  std::string host, device;
};
std::string text(const WorkerJoinRequest& request);
WorkerJoinRequest parse_worker_join_request(const std::string& text);  // throws UserError
struct JoinKeys {
  std::int64_t number = 1;  // from KeyStore::increment() under counter()
  static std::string counter() { return "joining"; }
  std::string request() const;
  std::string join_reply() const;  // the worker id, and the order of the generation that it joins
};

// Set when the run must end.
inline constexpr const char* kStopKey = "end";

// One thread.
class MembershipCoordinator {
 public:
  struct Inputs {
    ModelSpec model;
    Path run;
    std::optional<Path> memory{};  // first level of checkpoints (memory_level.h)
    InterimPlanner::Inputs interim_planner_inputs;
    std::vector<Phase> phases{};  // phases of the training; empty if it has only one
    RecoveryCosts costs{};        // costs of continuing without a rank, and of admitting it again
    // Proposes a better plan than the one with which the run has continued. Called on any thread. If empty,
    // the plan is kept.
    std::function<void(const Plan& plan)> propose_improvement{};
    // Called after a membership change was ordered, with the new members as listed in workers.json.
    std::function<void(const MembershipChange& order, const std::vector<WorkerEntry>& members)>
        on_change_done{};
  };
  // For a run in its first generation. The workers have ids 0, 1, … and use `plan`, whose epoch is `epoch`.
  // `board` must outlive this object.
  MembershipCoordinator(Board& board, Inputs inputs, const std::vector<WorkerEntry>& workers,
                        const Plan& plan, std::int64_t epoch);

  // For a run in a later generation, which began with `order`.
  MembershipCoordinator(Board& board, Inputs inputs, const std::vector<WorkerEntry>& workers,
                        const MembershipChange& order);

  const Membership& membership() const { return membership_; }
  bool is_member(int worker_id) const;
  std::vector<int> remaining_workers() const;  // worker ids of the members that have not been asked to leave
  // Whether leaving ranks may still have state that other ranks need. This is true until a rank has completed
  // the move of state with which this generation began.
  bool needs_leaving_ranks(const std::vector<SurvivorState>& survivor_states) const;
  // All current and former workers of the run, by worker id.
  const std::vector<WorkerEntry>& workers() const { return workers_; }
  // The current members, as listed in workers.json.
  std::vector<WorkerEntry> members() const;
  // Whether a step has begun. Before the first step, ranks may not be connected to a lost rank yet. They then
  // wait for it without noticing its loss.
  bool has_begun();
  // Describes the hang of a live process that blocks all other workers. Returns an empty string if it does
  // not hang.
  std::string hang_of(int worker_id) const;
  // Records the reason for the loss of a worker.
  void record_lost(int worker_id, const std::string& reason) { lost_[worker_id] = reason; }

  // The board keys that are polled periodically during normal operation.
  std::vector<std::string> watched_keys() const;
  // Called periodically. Detects join requests and, if there are any, asks the ranks to stop at the end of a
  // step.
  void poll();
  // Asks all workers to exit. Needed because workers that joined later have no launcher that would stop them.
  void ask_to_end() { (void)board_.set(kStopKey, ""); }
  // Interrupts the waits of all ranks, so that they report their survivor state.
  void request_survivor_states();
  // The report of an exited worker that was not started by this process, if there is one.
  std::optional<WorkerReport> report_of(int worker_id) const;
  std::optional<WorkerReport> wait_for_report(int worker_id) const;
  // Whether it is better to wait for lost ranks than to continue without them (recovery/repair.h). The wait
  // is limited in time and ends when a worker joins.
  bool should_wait_for_lost(const std::vector<SurvivorState>& survivor_states);
  // Called when all live ranks have reported their survivor state.
  tl::expected<MembershipChange, std::string> change_membership(
      const std::vector<SurvivorState>& survivor_states);

 private:
  // Makes all hosts copy the checkpoints in their memory to the run's folder. The newest state may be in host
  // memory, which only processes on that host can read.
  void collect_memory(const std::vector<SurvivorState>& survivor_states);
  void wait_for_memory(int rank, const Deadline& deadline) const;
  void add_joining_workers_to_memory(const std::vector<int>& joining_workers) const;
  std::vector<int> hosts_of(const std::vector<int>& worker_ids) const;
  std::map<std::int64_t, Plan> plans_of(const std::vector<SurvivorState>& survivor_states) const;
  Feasible<Plan> choose_plan(int size, const std::optional<StateLocation>& state);
  void propose_improvement();
  void record_outages(int num_lost, int num_joined);
  Outcome<void> claim_generation(const MembershipChange& order) const;
  tl::expected<MembershipChange, std::string> adopt_claimed_change(
      MembershipChange order, const std::vector<SurvivorState>& survivor_states);
  void begin_generation(const MembershipChange& order);
  void reserve_worker_ids(const MembershipChange& order);
  void detect_hangs();
  void send_join_replies(const MembershipChange& order, const std::map<std::int64_t, int>& worker_ids);

  Board& board_;
  const Inputs inputs_;
  Membership membership_;  // includes leaving ranks until they have left
  int num_staying_;
  std::vector<WorkerEntry> workers_;
  // [epoch]: plans up to the start of this generation. Later plans are in the run's folder.
  std::map<std::int64_t, Plan> plans_;
  std::map<int, std::string> lost_;  // worker ids lost in this generation
  bool has_begun_ = false;
  std::map<int, std::string> hanging_workers_;  // by worker id: live processes that hang, with a description
  std::map<std::int64_t, WorkerJoinRequest> join_requests_;  // by the number of the request
  std::int64_t next_join_number_ = 1;
  InterimPlanner interim_planner_;
  std::optional<InterimPlan> interim_plan_;  // the plan in use, while it may still be improved
  std::future<void> improvement_;
  std::vector<Outage> outages_;            // all outages so far, in seconds of this process's clock
  std::optional<Deadline> wait_deadline_;  // the end of the wait for lost ranks to return
};

// The key under which a joined worker stores its final report.
std::string worker_report_key(int worker_id);
// Whether a process has claimed (started) this generation. Claims that earlier runs left in the folder are
// removed when a run starts.
bool has_claim(const Path& run, int generation);
// The order of the claimed generation. Returns nullopt if the generation is not claimed or its order cannot
// be read.
std::optional<MembershipChange> claimed_change(const Path& run, int generation);
// Whether the other ranks have started this generation without this worker.
bool is_excluded(const Path& run, int generation, int worker_id);
void clear_claims(const Path& run);
// Set to make the ranks of a generation stop together at the end of a step when no rank is lost.
std::string membership_change_key(int generation);

}  // namespace optimus
