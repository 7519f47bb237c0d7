// Connects the rendezvous to the environment of this process and to torchrun's store.
#include "run/launched_rendezvous.h"

#include "base/error.h"
#include "base/event.h"
#include "comm/c10d_link.h"
#include "rundir/worker_protocol.h"

namespace optimus {
namespace {

TorchStore torch_store_calls() {
  return {[](const std::string& host, int port, const std::string& key, const std::string& value) {
            value_or_throw(announce_in_torch_store(host, port, key, value,
                                                   Deadline::after(Seconds(30), "torchrun's store")));
          },
          [](const std::string& host, int port, const std::string& key) -> std::optional<std::string> {
            const auto value =
                read_from_torch_store(host, port, key, Deadline::after(Seconds(2), "torchrun's store"));
            return value ? std::optional(*value) : std::nullopt;
          }};
}

}  // namespace

RendezvousOptions rendezvous_options(const LaunchedRendezvous& settings) {
  return {.launch = settings.launch,
          .token = find_token(process_environment(), settings.token_file),
          .store = settings.store,
          .torch = torch_store_calls(),
          .check_interrupted =
              [stop = settings.stop] {
                if (stop.is_requested()) throw Interrupted{};
              },
          .timeout = settings.timeout};
}

}  // namespace optimus
