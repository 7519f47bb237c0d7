// Benchmarks collectives between processes on this machine: Gloo's own collectives, and those that this
// project builds from messages (comm/exchange.h) with several segment sizes. Starts its own processes. Prints
// medians in microseconds.
//
//   bench_comm 4            with 4 processes
#define USE_C10D_GLOO
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/text.h"
#include "comm/c10d_link.h"
#include "comm/exchange.h"

extern char** environ;

namespace optimus {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSizes[] = {1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};

struct Variant {
  std::string name;
  AlgorithmThresholds sizes;
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {{"whole", {std::int64_t{1} << 60, 1 << 20}},
                                           {"64K", {0, 64 << 10}},
                                           {"256K", {0, 256 << 10}},
                                           {"1M", {0, 1 << 20}},
                                           {"4M", {0, 4 << 20}}};
  return all;
}

class Bench {
 public:
  Bench(int rank, int size, int port) : rank_(rank), size_(size) {
    const Deadline deadline = Deadline::after(Seconds(30), "connecting");
    client_ = value_or_throw(
        StoreClient::connect({.port = port, .token = "bench", .address = "127.0.0.1"}, deadline));
    link_ = value_or_throw(client_->link("ours", rank, size, deadline, {}));
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port), options.waitWorkers = false;
    auto store = c10::make_intrusive<c10d::PrefixStore>(
        "gloo", c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
    auto group = c10d::ProcessGroupGloo::Options::create();
    group->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, group);
  }

  void run() {
    for (const CommKind kind : {CommKind::all_reduce, CommKind::all_gather, CommKind::reduce_scatter}) {
      std::vector<std::string> header = {fmt::format("{}, {} processes", name(kind), size_), "gloo"};
      for (const Variant& variant : variants()) header.push_back(variant.name);
      TextTable table(header);
      for (const std::int64_t bytes : kSizes) {
        std::vector<std::string> row = {text(Bytes(bytes)), shown([&] { gloo(kind); }, bytes)};
        for (const Variant& variant : variants())
          row.push_back(shown([&] { ours(kind, variant.sizes); }, bytes));
        table.row(row);
      }
      if (rank_ == 0) fmt::print("{}\n", table.text());
      std::fflush(stdout);
    }
  }

 private:
  // The median time of a collective; `bytes` is the size of the whole tensor.
  std::string shown(const std::function<void()>& once, std::int64_t bytes) {
    whole_ = at::ones({bytes / 4 / size_ * size_}, at::kFloat);
    part_ = at::ones({whole_.numel() / size_}, at::kFloat);
    const int repeats = bytes > (1 << 20) ? 15 : 60;
    std::vector<double> times;
    for (int i = 0; i < repeats + 5; ++i) {
      const auto begin_time = Clock::now();
      once();
      if (i >= 5)
        times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin_time).count());
    }
    std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
    return fmt::format("{:.0f}", times[static_cast<std::size_t>(repeats / 2)]);
  }

  void gloo(CommKind kind) {
    std::vector<at::Tensor> all = {whole_};
    if (kind == CommKind::all_reduce)
      gloo_->allreduce(all)->wait();
    else if (kind == CommKind::all_gather)
      gloo_->_allgather_base(whole_, part_)->wait();
    else
      gloo_->_reduce_scatter_base(part_, whole_)->wait();
  }

  void ours(CommKind kind, AlgorithmThresholds sizes) {
    CommOperation operation = kind == CommKind::all_reduce ? all_reduce_operation(whole_, ReduceOp::sum, "x")
                              : kind == CommKind::all_gather
                                  ? all_gather_operation(part_, whole_, size_, "x")
                                  : reduce_scatter_operation(whole_, part_, size_, "x");
    MemberExchange exchange(std::move(operation), *link_, scratch_, number_++, sizes);
    const Deadline deadline = Deadline::after(Seconds(30), "bench");
    exchange.begin();
    exchange.run(interrupter_, {deadline, [] { return std::nullopt; }});
  }

  const int rank_, size_;
  std::unique_ptr<StoreClient> client_;
  std::unique_ptr<GroupLink> link_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  ScratchMemory scratch_;
  Interrupter interrupter_;
  std::int64_t number_ = 0;
  at::Tensor whole_, part_;
};

int start_ranks(int size) {
  StoreServer server;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> words = {"bench_comm", std::to_string(size), std::to_string(rank),
                                      std::to_string(server.port())};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pids.push_back(0);
    if (::posix_spawn(&pids.back(), "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0)
      return 1;
  }
  int failed = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    failed |= status;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace optimus

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  if (argc < 4) return optimus::start_ranks(std::clamp(size, 1, 64));
  try {
    optimus::Bench(std::atoi(argv[2]), size, std::atoi(argv[3])).run();
  } catch (const optimus::LinkError& error) {
    fmt::print(stderr, "member {}: {}\n", error.member_index, error.reason);
    return 1;
  }
  return 0;
}
