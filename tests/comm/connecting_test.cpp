// A rank that dies while all ranks connect: the others may be notified, and then fail at once, in whatever
// phase Gloo is.
#include <gtest/gtest.h>

#include <atomic>

#include "base/text.h"
#include "comm/comm_checks.h"

namespace optimus::test {
namespace {

using Clock = std::chrono::steady_clock;

// The store of a process that announces its arrival and then hangs: every later call fails.
class HangingStore final : public KeyStore {
 public:
  HangingStore(std::unique_ptr<KeyStore> store, bool publishes_address)
      : store_(std::move(store)), publishes_address_(publishes_address) {}

  Outcome<void> set(const std::string& key, const std::string& value) override {
    if (!is_arrival(key) && !publishes_address_) return failure("hangs");
    return store_->set(key, value);
  }
  Outcome<std::optional<std::string>> find(const std::string& key) override {
    if (!is_arrival(key)) return failure("hangs");
    return store_->find(key);
  }
  Outcome<std::int64_t> increment(const std::string& key) override { return store_->increment(key); }
  Outcome<void> set_last_will(const std::string& key, const std::string& value) override {
    return store_->set_last_will(key, value);
  }
  Outcome<void> clear() override { return store_->clear(); }
  std::string own_address() const override { return store_->own_address(); }
  std::string store_address() const override { return store_->store_address(); }

 private:
  static bool is_arrival(const std::string& key) { return starts_with(key, "arrived/"); }
  const std::unique_ptr<KeyStore> store_;
  const bool publishes_address_;
};

// One rank of three; `dying` is the rank whose store stops working. Returns how long its connect() of at most
// a minute took.
double time_until_failure(int rank, const StoreAddress& place, int dying, bool publishes_address,
                          std::atomic<int>& num_over) {
  auto store = value_or_throw(open_store(place, soon()));
  StoreClient::StoreEndpoint own{};
  own.store = rank == dying ? std::make_shared<HangingStore>(std::move(store), publishes_address)
                            : std::shared_ptr<KeyStore>(std::move(store));
  const auto comm = value_or_throw(make_process_comm({rank, 3, own, kTestThresholds}, soon()));
  std::thread watch([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    comm->abandon("the membership has changed");
  });
  const auto begin_time = Clock::now();
  const CommOutcome<void> outcome = comm->connect(0, {{kWorld}}, soon(60));
  const double waited = std::chrono::duration<double>(Clock::now() - begin_time).count();
  watch.join();
  EXPECT_FALSE(outcome) << "rank " << rank << " is connected to a rank that hangs";
  ++num_over;
  while (num_over < 3) std::this_thread::yield();  // the hanging rank has not closed its sockets
  return waited;
}

TEST(Connecting, FailsPromptlyAfterAbandon) {
  constexpr double kPromptly = 10;  // far less than the minute of the deadline
  for (const bool publishes_address : {false, true})
    for (int dying = 0; dying < 3; ++dying) {
      StoreServer server;
      std::atomic<int> num_over = 0;
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < 3; ++rank)
        ranks.emplace_back([&, rank] {
          EXPECT_LT(time_until_failure(rank, {.port = server.port(), .token = "test"}, dying,
                                       publishes_address, num_over),
                    kPromptly)
              << "rank " << rank << ", where rank " << dying << (publishes_address ? " had" : " had not")
              << " published its address";
        });
      for (std::thread& rank : ranks) rank.join();
    }
}

}  // namespace
}  // namespace optimus::test
