// How somebody outside asks a running training for something: a file in the run's folder, and a file with the answer. Whoever may
// write there may ask; nothing listens on a network, and it works wherever the folder is seen.
//
//   RUN/control/1731766812-4711.request      {"plan": {…}}, or {"plan": "auto"}        optimus switch
//                                            {"drain": 2}                              optimus drain
//   RUN/control/1731766812-4711.taken        the request, while its rank is being drained
//   RUN/control/1731766812-4711.answer       {"done": true, "text": "step 412: plan 7f3a → 91c2 …"}
//
// Both are written to another name and renamed, so nobody reads half of one.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "plan/plan.h"

namespace optimus {

struct PlanRequest {
  std::string name;          // of its file
  std::optional<Plan> plan;  // none: the best that the run finds
  std::string why{};         // for people and records
};
struct DrainRequest {
  std::string name;
  int rank = 0;  // that is to leave
};
using ControlRequest = std::variant<PlanRequest, DrainRequest>;

struct ControlAnswer {
  bool is_done = false;
  std::string text;  // one line: what was done, or why not
};

// The side of the run, at one rank. One thread.
class ControlFolder {
 public:
  explicit ControlFolder(Path run);
  // The oldest that has no answer. One that makes no sense is answered here. Looks at most every 50 ms.
  std::optional<ControlRequest> next();
  bool is_somebody_waiting() const { return !waiting().empty(); }
  // That it could not be written is of no concern to the run.
  void answer(const std::string& name, const ControlAnswer& answer);
  // What is asked there is being done, by this rank, which answers it; nobody else does while it lives. False: it was taken back.
  bool take(const std::string& name);
  // When a run begins: what one before it had taken, nobody answers.
  void refuse_taken(const std::string& why);
  // When ranks have new numbers: whoever has named one by its old number is told. Also those whose request was taken by a rank that is gone.
  void refuse_drains(const std::string& why, bool is_taker_gone);
  // When the run ends: whoever still waits is told.
  void close(const std::string& why);

 private:
  std::vector<std::string> waiting() const;
  std::vector<std::string> taken() const;

  const Path folder_;
  std::optional<Deadline> pause_;
};

// The side that asks. Fails when no training answers in time; what it has asked for is then taken back.
Outcome<ControlAnswer> ask(const Path& run, const OrderedJson& wish, const Deadline& deadline);
// Its wishes: for a plan, or for the best one; that a rank leaves.
OrderedJson plan_wish(const std::optional<Plan>& plan, const std::string& why = "asked for");
OrderedJson drain_wish(int rank);

}  // namespace optimus
