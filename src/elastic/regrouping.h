// The host's side of going on without those who are lost, and with those who come: keeps who is in the run and which plan it is on from
// one generation to the next, and makes the order that all ranks follow (regroup.h). Does not talk to ranks (salvage_host.h does) nor
// start or end processes.
#pragma once

#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "elastic/regroup.h"
#include "model/spec.h"
#include "recovery/recovery_costs.h"
#include "recovery/repair.h"
#include "rundir/board.h"
#include "rundir/worker_protocol.h"

namespace optimus {

// What a process says that wants to take part, under the number that it has taken in the run's store.
struct Comer {
  int pid = 0;
  std::string host, device;
};
std::string text(const Comer& comer);
Comer parse_comer(const std::string& text);  // throws UserError
struct JoinKeys {
  std::int64_t number = 1;  // as KeyStore::count gives them under counter()
  static std::string counter() { return "joining"; }
  std::string comer() const;
  std::string welcome() const;  // "SEAT ORDER": the order is of the generation that it begins with
};

// Set when the run is to end.
inline constexpr const char* kEndKey = "end";

// One thread.
class Regrouping {
 public:
  struct Facts {
    ModelSpec model;
    Path run;
    std::optional<Path> memory{};  // a first level of checkpoints (memory_level.h)
    FirstAnswers::Facts answers;
    std::vector<Phase> phases{};  // of the training; none: it has one
    RecoveryCosts costs{};        // of going on without somebody, and of letting it in again
    // Asks the run for a better plan than the one that it has gone on with; any thread. None: it is left at that.
    std::function<void(const Plan& plan)> improve{};
    // When the others are to go on as the order says; members: as workers.json has them.
    std::function<void(const RegroupOrder& order, const std::vector<WorkerEntry>& members)> done{};
  };
  // The workers that the run begins with are seats 0 …, on the plan of this epoch. board must outlive this.
  Regrouping(Board& board, Facts facts, const std::vector<WorkerEntry>& workers, const Plan& plan,
             std::int64_t epoch);

  // Of a run in a later generation: as the order says that it began with.
  Regrouping(Board& board, Facts facts, const std::vector<WorkerEntry>& workers, const RegroupOrder& order);

  const Membership& membership() const { return membership_; }
  bool is_member(int seat) const;
  std::vector<int> staying() const;  // seats of those who have not been told to leave
  // Whether those who leave may still have what others need: until somebody stands behind the move that this generation began with.
  bool needs_leavers(const std::vector<Standing>& standings) const;
  // All who ever were, by seat.
  const std::vector<WorkerEntry>& workers() const { return workers_; }
  // As workers.json has them.
  std::vector<WorkerEntry> members() const;
  // Whether a step has begun: before, who is lost is nobody's peer yet, and the others wait for it in vain.
  bool has_begun();
  // What hangs there, for people, while its process lives and all others wait for it; empty: nothing does.
  std::string what_hangs(int seat) const;
  // What became of one that is gone, for people.
  void note_lost(int seat, const std::string& how) { lost_[seat] = how; }

  // What is looked for now and then while all is well.
  std::vector<std::string> watched_keys() const;
  // Now and then: sees who wants to come, and asks the ranks to meet when there is somebody.
  void look();
  // The run is to end: those who joined have nobody else who would tell them.
  void ask_to_end() { (void)board_.set(kEndKey, ""); }
  // Ends the waits of all ranks: they are to say where they stand.
  void rouse();
  // How a worker that nobody here has started has ended, if it has.
  std::optional<WorkerReport> report_of(int seat) const;
  std::optional<WorkerReport> wait_for_report(int seat) const;
  // Whether it is better to wait for who is lost than to go on without it (recovery/repair.h): for a while, and until somebody comes.
  bool waits_for_lost(const std::vector<Standing>& standings);
  // When all who live have said where they stand.
  tl::expected<RegroupOrder, std::string> regroup(const std::vector<Standing>& standings);

 private:
  // What is newest may be in hosts' memory, which only their own processes see.
  void collect_memory(const std::vector<Standing>& standings);
  void wait_for_memory(int rank, const Deadline& deadline) const;
  void add_comers_to_memory(const std::vector<int>& comers) const;
  std::vector<int> hosts_of(const std::vector<int>& seats) const;
  std::map<std::int64_t, Plan> plans_of(const std::vector<Standing>& standings) const;
  void improve();
  void note_outages(int num_lost, int num_come);
  Outcome<void> claim(const RegroupOrder& order) const;
  tl::expected<RegroupOrder, std::string> adopt(RegroupOrder order, const std::vector<Standing>& standings);
  void begin_generation(const RegroupOrder& order);
  void know_seats(const RegroupOrder& order);
  void look_for_hangs();
  void welcome(const RegroupOrder& order, const std::map<std::int64_t, int>& seats);

  Board& board_;
  const Facts facts_;
  Membership membership_;  // with those who leave, until they have
  int num_staying_;
  std::vector<WorkerEntry> workers_;
  std::map<std::int64_t, Plan>
      plans_;  // [epoch]: of this generation's begin; later ones are in the run's folder
  std::map<int, std::string> lost_;  // seats that are gone since
  bool has_begun_ = false;
  std::map<int, std::string> hung_;       // seats whose work does not go on, though their processes live
  std::map<std::int64_t, Comer> comers_;  // by number
  std::int64_t next_comer_ = 1;
  FirstAnswers answers_;
  std::optional<FirstAnswer> answer_;  // that the run has gone on with, and that may be improved
  std::future<void> improving_;
  std::vector<Outage> outages_;   // of all that were lost, in seconds of this process's clock
  std::optional<Deadline> wait_;  // for who is lost
};

// What a worker that joined says when it ends.
std::string end_key(int seat);
// Whether somebody has gone on as this generation. What earlier runs in the folder have left of that is cleared.
bool has_claim(const Path& run, int generation);
// The order that it has gone on with; nothing: nobody has, or it cannot be read.
std::optional<RegroupOrder> claimed_order(const Path& run, int generation);
// Whether others have gone on as this generation without this seat.
bool is_left_out(const Path& run, int generation, int seat);
void clear_claims(const Path& run);
// Set when somebody wants the ranks of a generation to meet at the end of a step, though nobody is lost.
std::string meet_key(int generation);

}  // namespace optimus
