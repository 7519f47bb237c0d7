// Keys in the run's store by which a rank's process shows that it is alive and makes progress.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>

namespace optimus {

// The key of a rank's heartbeat (rank_watch.h). A process that is stopped or has ended does not update it.
inline std::string heartbeat_key(int worker_id) { return fmt::format("heartbeat/{}", worker_id); }
// Set by the first rank that begins a step: all ranks are connected then.
inline constexpr const char* kStartedKey = "begun";
// lost_key() is set by the last will of a process when it ends, or by the run's host for a hanging process.
// Its value is kEnded if the process is known to have ended and has not merely stopped responding.
inline constexpr const char* kEnded = "ended";
inline std::string lost_key(int worker_id) { return fmt::format("gone/{}", worker_id); }
// The address ("host:port") of the worker's standby store, which is used if the run's store is lost.
inline std::string standby_key(int worker_id) { return fmt::format("standby/{}", worker_id); }

// The content of a heartbeat.
struct Heartbeat {
  std::int64_t number = 0;
  std::int64_t step = 0;           // the step that this rank, and therefore every rank, has reached
  double waiting = 0;              // seconds that it has waited for other ranks
  std::string hang_description{};  // an operation that takes far too long, described; empty if there is none
};
std::string text(const Heartbeat& heartbeat);
// nullopt if the text is invalid.
std::optional<Heartbeat> parse_heartbeat(const std::string& text);

}  // namespace optimus
