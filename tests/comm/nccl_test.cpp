// NCCL behind the Comm of processes, as far as one GPU allows: at world size 1. Skips if there is no GPU.
#include <gtest/gtest.h>

#include "comm/nccl_group.h"
#include "comm/rank_world.h"
#ifdef OPTIMUS_NCCL
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <future>
#endif

namespace optimus::test {
namespace {

TEST(NcclEligibility, UsedIfEachMemberHasItsOwnGpu) {
  EXPECT_EQ(why_nccl_is_unusable({0, 1, 5}, {"a", "b", "c"}), "");
  EXPECT_EQ(why_nccl_is_unusable({0, 1, 5}, {"a", "b", "a"}),
            "ranks 0 and 5 share a GPU; NCCL needs one GPU per rank");
  EXPECT_EQ(why_nccl_is_unusable({3, 4}, {"a", ""}), "rank 4 has no GPU that NCCL can use");
}

TEST(NcclEligibility, CpusHaveNoGpuId) { EXPECT_EQ(gpu_id_of(at::Device(at::kCPU)), ""); }

#ifdef OPTIMUS_NCCL
class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
    comm_ = make(0, 1, "one");
    must(comm_->connect(0, {{kWorld}}, soon(60)));
  }
  std::unique_ptr<Comm> make(int rank, int size, const std::string& token) {
    return value_or_throw(make_process_comm({.rank = rank,
                                             .size = size,
                                             .store = {.port = server_.port(), .token = token},
                                             .sizes = kTestThresholds,
                                             .device = at::Device(at::kCUDA, 0)},
                                            soon()));
  }
  static at::Tensor numbers(std::int64_t count, at::ScalarType type) {
    return at::arange(count, at::TensorOptions(at::kDouble).device(at::kCUDA)).remainder(100).to(type);
  }

  StoreServer server_;
  std::unique_ptr<Comm> comm_;
};

TEST_F(Nccl, OneRankGetsItsOwnInput) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte})
    for (const std::int64_t count : {0, 1, 117, 100'000}) {
      const at::Tensor mine = numbers(count, type), kept = mine.clone();
      const at::Tensor gathered = at::zeros_like(mine), scattered = at::zeros_like(mine);
      std::vector<std::unique_ptr<Pending>> all;
      all.push_back(comm_->all_reduce(kWorld, mine, ReduceOp::sum, "a sum"));
      all.push_back(comm_->all_reduce(kWorld, mine, ReduceOp::maximum, "a maximum"));
      all.push_back(comm_->broadcast(kWorld, mine, 0, "from the only rank"));
      all.push_back(comm_->all_gather(kWorld, mine, gathered, "a gather"));
      all.push_back(comm_->reduce_scatter(kWorld, mine, scattered, "a scatter"));
      for (const auto& pending : all) must(pending->wait(soon()));
      must(comm_->synchronize(soon()));
      for (const auto& pending : all) EXPECT_TRUE(pending->is_done());
      EXPECT_TRUE(at::equal(mine, kept) && at::equal(gathered, kept) && at::equal(scattered, kept))
          << c10::toString(type) << " " << count;
    }
  EXPECT_NE(comm_->flight_log().text().find("a scatter"), std::string::npos);
}

TEST_F(Nccl, ReportsDeviceTime) {
  const at::Tensor x = numbers(1 << 26, at::kFloat), y = at::zeros_like(x);
  double seconds = 0;
  for (int i = 0; i < 2; ++i) {  // the first operation includes setup
    const std::unique_ptr<Pending> gather = comm_->all_gather(kWorld, x, y, "numbers");
    must(gather->wait(soon()));
    must(comm_->synchronize(soon()));
    ASSERT_TRUE(gather->duration().has_value());
    seconds = gather->duration()->value;
  }
  // 256 MiB are read and written: no GPU does that in less than 10 us (50 TB/s), and none takes 0.1 s.
  EXPECT_GT(seconds, 10e-6);
  EXPECT_LT(seconds, 0.1);
  EXPECT_FALSE(comm_->uses_nccl()) << "a group of one rank has no traffic between GPUs";
}

// The operation runs after the work that the stream was given before, and work submitted after its wait sees
// the result.
TEST_F(Nccl, RespectsStreamOrder) {
  at::Tensor x = at::zeros({1 << 22}, at::TensorOptions(at::kFloat).device(at::kCUDA)), y = at::zeros_like(x);
  for (int step = 1; step <= 50; ++step) {
    x.add_(1);
    const std::unique_ptr<Pending> gather = comm_->all_gather(kWorld, x, y, "numbers");
    must(gather->wait(soon()));
    y.mul_(2);
    x.copy_(y).div_(2);
  }
  must(comm_->synchronize(soon()));
  EXPECT_EQ(y.min().item<double>(), 100);
  EXPECT_EQ(y.max().item<double>(), 100);
}

// A stalled stream, as after an operation whose peer has died.
class StalledStream {
 public:
  StalledStream() {
    cudaLaunchHostFunc(
        c10::cuda::getCurrentCUDAStream(), [](void* self) { static_cast<StalledStream*>(self)->end_.wait(); },
        this);
  }
  ~StalledStream() {
    promise_.set_value();
    c10::cuda::device_synchronize();
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> end_ = promise_.get_future().share();
};

TEST_F(Nccl, FailsInTimeAndStaysBroken) {
  const at::Tensor x = numbers(1000, at::kFloat);
  c10::cuda::device_synchronize();
  const StalledStream stalled_stream;
  const auto began = Deadline::Clock::now();
  const std::unique_ptr<Pending> sum = comm_->all_reduce(kWorld, x, ReduceOp::sum, "gradients of block 3");
  must(sum->wait(Deadline::after(Seconds(0.4), "step 12")));  // the stream waits, not the host
  EXPECT_FALSE(sum->is_done());
  EXPECT_FALSE(sum->duration().has_value());
  const CommOutcome<void> settled = comm_->synchronize(soon(30));
  ASSERT_FALSE(settled.has_value());
  EXPECT_LT(std::chrono::duration<double>(Deadline::Clock::now() - began).count(), 5);
  EXPECT_EQ(settled.error().operation, "all_reduce of gradients of block 3");
  EXPECT_EQ(settled.error().reason, "the deadline for step 12 passed");
  EXPECT_FALSE(sum->wait(soon()).has_value());
  const CommOutcome<void> next = comm_->all_reduce(kWorld, x, ReduceOp::sum, "the next")->wait(soon());
  ASSERT_FALSE(next.has_value());
  EXPECT_NE(next.error().reason.find("had failed"), std::string::npos) << next.error().reason;
}

TEST_F(Nccl, FailsWhenRunIsAbandoned) {
  const at::Tensor x = numbers(1000, at::kFloat);
  c10::cuda::device_synchronize();
  const StalledStream stalled_stream;
  const std::unique_ptr<Pending> sum = comm_->all_reduce(kWorld, x, ReduceOp::sum, "numbers");
  must(sum->wait(soon()));
  comm_->abandon("the user has cancelled the run");
  const CommOutcome<void> settled = comm_->synchronize(soon());
  ASSERT_FALSE(settled.has_value());
  EXPECT_EQ(settled.error().reason, "the user has cancelled the run");
}

TEST_F(Nccl, AnotherEpochHasAnotherCommunicator) {
  const at::Tensor x = numbers(10, at::kFloat), kept = x.clone();
  must(comm_->connect(1, {{kWorld}}, soon(60)));
  comm_->drop(0);
  must(comm_->all_reduce(kWorld, x, ReduceOp::sum, "numbers")->wait(soon()));
  must(comm_->synchronize(soon()));
  EXPECT_TRUE(at::equal(x, kept));
}

// NCCL rejects them, so it is not used, and their tensors go through host memory.
TEST_F(Nccl, TwoRanksOnOneGpuUseHostMemory) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Comm> comm = make(rank, 2, "two");
      EXPECT_TRUE(comm->connect(0, {{kWorld}}, soon(60)).has_value());
      const at::Tensor x = numbers(1000, at::kFloat);
      EXPECT_TRUE(comm->all_reduce(kWorld, x, ReduceOp::sum, "numbers")->wait(soon()).has_value());
      EXPECT_TRUE(at::equal(x, numbers(1000, at::kFloat) * 2));
    });
  for (std::thread& thread : threads) thread.join();
}

// If NCCL is called all the same, its error is returned as a failure, and no rank hangs.
TEST_F(Nccl, RejectsTwoRanksOnOneGpu) {
  std::vector<std::string> answers(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const auto store = value_or_throw(
          StoreClient::connect({.port = server_.port(), .token = "refused", .address = "127.0.0.1"}, soon()));
      SharedRankState shared(rank);
      shared.store = store.get();
      const auto group =
          connect_nccl_group(shared, "0/world", {Role::world, {0, 1}}, 0, at::Device(at::kCUDA, 0), soon(30));
      answers[static_cast<std::size_t>(rank)] = group ? "connected" : group.error().why;
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& answer : answers) EXPECT_NE(answer.find("NCCL error"), std::string::npos) << answer;
}
#else
TEST(Nccl, IsSkippedWithoutNccl) {
  GTEST_SKIP() << "this build has no NCCL (it comes with PyTorch for CUDA)";
}
#endif

}  // namespace
}  // namespace optimus::test
