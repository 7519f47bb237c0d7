// Plans that are requested while a training runs: all ranks end with the same plan, and a rank that refuses
// delays no other. Ranks are threads that sleep in each step.
#include "switching/plan_switch_controller.h"

#include <condition_variable>
#include <future>
#include <map>
#include <mutex>
#include <set>

#include "base/temporary_folder.h"
#include "engine/equal_training.h"
#include "run/faulty_comm.h"

namespace optimus {
namespace {

constexpr int kRanks = 3, kAttempts = 2, kMaxSteps = 1000, kDue = 6;
constexpr std::chrono::milliseconds kStep{25};
// Preparing waits up to a minute for other ranks: shorter times show that the refusal was announced.
constexpr double kSoon = 10;

Plan copies(const ModelSpec& model, int zero) {
  UniformPlan shape{.dp = kRanks, .batch = 6, .sequence_length = kLength, .precision = Precision::fp64};
  shape.strategy.zero = zero;
  return uniform_plan(model, shape);
}

struct ObservedOutcome {
  std::int64_t begun = 0, step = 0;  // when a rank first saw it, and when it ended
  SwitchOutcome end;
};

struct RequestedRun {
  std::vector<ScriptedSwitch> script{};
  std::optional<Path> requests{};
  // Why a rank refuses an attempt, if it does.
  std::function<std::optional<std::string>(int rank, int attempt)> refusal;
  std::function<std::optional<PlanProposal>()> proposal = [] { return std::nullopt; };
  std::function<ProvisionalStatus()> provisional_status = [] { return ProvisionalStatus::confirmed; };
  std::function<void(int rank, int epoch)> dropped = [](int, int) {};  // any thread
};

class ScriptedProposals final : public ProposalSource {
 public:
  explicit ScriptedProposals(const RequestedRun& run) : run_(run) {}
  std::optional<PlanProposal> take_proposal() override { return run_.proposal(); }
  ProvisionalStatus provisional_status() const override { return run_.provisional_status(); }

 private:
  const RequestedRun& run_;
};

class RecordedOutcomes final : public SwitchListener {
 public:
  void before_switch() override {}
  std::string switch_ended(const SwitchOutcome& outcome) override {
    if (outcome.kind != SwitchOutcome::Kind::not_tried) ended.push_back({begun, step, outcome});
    return outcome.why_not;
  }
  std::atomic<std::int64_t> step = 0, begun = 0;
  std::vector<ObservedOutcome> ended;
};

// Runs one rank's steps. Returns how its attempts ended.
std::vector<ObservedOutcome> run_rank(const ModelSpec& model, Comm& comm, const RequestedRun& run) {
  PlanPart part{.plan = copies(model, 0)};
  part.parameters = std::make_unique<Parameters>(part.plan, model, comm.rank(), test_device());
  part.parameters->initialize(5);
  EngineOptions options{.device = test_device(), .seed = 9, .timeout = Seconds(60)};
  options.rank = comm.rank(), options.comm = &comm;
  part.engine = std::make_unique<Engine>(part.plan, model, *part.parameters, options);
  std::vector<Group> groups = part.engine->groups();
  groups.push_back({Role::world, {}});
  throw_if_failed(comm.connect(0, groups, Deadline::after(Seconds(60), "connecting")));
  std::optional<ControlFolder> requests;
  ScriptedProposals proposals(run);
  std::optional<PlanSwitchController::RequestSources> sources;
  if (run.requests && comm.rank() == 0) {
    requests.emplace(*run.requests);
    sources.emplace(PlanSwitchController::RequestSources{
        .requests = *requests, .choose = [&](const Plan&) { return part.plan; }, .proposals = &proposals});
  }
  std::atomic<int> num_attempts = 0;
  RecordedOutcomes outcomes;
  StepAgreement agreement(comm, Seconds(60));
  const auto refusal = [&](const PlanSwitch&) {
    outcomes.begun = outcomes.step.load();
    return run.refusal(comm.rank(), num_attempts++);
  };
  PlanSwitchController switches({model, comm, options, {.timeout = Seconds(60)}}, part, run.script, sources,
                                refusal, outcomes);
  while (outcomes.ended.size() < kAttempts && ++outcomes.step <= kMaxSteps) {  // all ranks see the same
    std::this_thread::sleep_for(kStep);
    switches.step_ended(outcomes.step, agreement.take());
    agreement.submit(switches.vote());
  }
  agreement.take();
  return outcomes.ended;
}

std::vector<std::vector<ObservedOutcome>> run_all(const RequestedRun& run) {
  const ModelSpec model = model_of("gpt2", 2, 2);
  ThreadWorld world(kRanks);
  std::vector<std::vector<ObservedOutcome>> ends(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      test::FaultyComm comm(world.comm(rank), {});
      comm.keeps_connection = true;
      comm.on_drop = [&](int epoch) { run.dropped(rank, epoch); };
      try {
        ends[static_cast<std::size_t>(rank)] = run_rank(model, comm, run);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return ends;
}

std::optional<std::string> last_rank_refuses_first_attempt(int rank, int attempt) {
  if (rank == kRanks - 1 && attempt == 0) return "too small here";
  return std::nullopt;
}

TEST(PlanSwitchController, RefusalIsKnownWithinTwoSteps) {
  const TemporaryFolder folder;
  const ModelSpec model = model_of("gpt2", 2, 2);
  std::future<std::vector<ControlAnswer>> asked = std::async(std::launch::async, [&] {
    std::vector<ControlAnswer> answers;
    for (int i = 0; i < 2; ++i)
      answers.push_back(value_or_throw(send_request(folder.path(), switch_request_json(copies(model, 3)),
                                                    Deadline::after(Seconds(60), "an answer"))));
    return answers;
  });
  const auto begin_time = std::chrono::steady_clock::now();
  const auto ends = run_all({.requests = folder.path(), .refusal = last_rank_refuses_first_attempt});
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count(), kSoon);
  for (const std::vector<ObservedOutcome>& own : ends) {
    ASSERT_EQ(own.size(), 2U);
    EXPECT_EQ(own[0].end.why_not, "rank 2: too small here");
    EXPECT_LE(own[0].step - own[0].begun, 3);  // checked in one step, voted after it, known after the next
    EXPECT_EQ(own[1].end.why_not, "");         // the next attempt is not affected
    EXPECT_EQ(own[1].end.report.moved, own[1].end.report.minimum);
  }
  const std::vector<ControlAnswer> answers = asked.get();
  EXPECT_FALSE(answers[0].is_done);
  EXPECT_EQ(answers[0].text, "rank 2: too small here");
  EXPECT_TRUE(answers[1].is_done);
}

// A proposal with a provisional finding is prepared and waits: the first finding is cancelled, the second is
// confirmed.
TEST(PlanSwitchController, ProvisionalProposalIsPreparedAndWaits) {
  constexpr int kOpen = 6;  // steps
  const TemporaryFolder folder;
  const ModelSpec model = model_of("gpt2", 2, 2);
  int num_proposals = 0, num_asked = 0;  // rank 0 only
  const auto proposal = [&]() -> std::optional<PlanProposal> {
    ++num_proposals, num_asked = 0;
    return PlanProposal{.plan = copies(model, 3), .why = "slow", .is_provisional = true};
  };
  const auto provisional_status = [&] {
    if (++num_asked <= kOpen) return ProvisionalStatus::open;
    return num_proposals == 1 ? ProvisionalStatus::rejected : ProvisionalStatus::confirmed;
  };
  const auto ends = run_all({.requests = folder.path(),
                             .refusal = [](int, int) { return std::nullopt; },
                             .proposal = proposal,
                             .provisional_status = provisional_status});
  for (const std::vector<ObservedOutcome>& own : ends) {
    ASSERT_EQ(own.size(), 2U);
    EXPECT_EQ(own[0].end.why_not, "rank 0: its reason no longer applies");
    const bool is_rank_0 = &own == &ends.front();
    EXPECT_EQ(own[0].end.kind, is_rank_0 ? SwitchOutcome::Kind::cancelled : SwitchOutcome::Kind::refused);
    EXPECT_EQ(own[1].end.why_not, "");
    EXPECT_TRUE(own[1].end.is_made());
    EXPECT_EQ(own[1].end.from, copies(model, 0));
    EXPECT_EQ(own[1].end.report.moved, own[1].end.report.minimum);
    for (const ObservedOutcome& one : own) EXPECT_GE(one.step - one.begun, kOpen);
  }
}

// A request during a provisional finding is answered immediately, and the provisional proposal is dropped.
TEST(PlanSwitchController, RequestDoesNotWaitForProvisionalFinding) {
  const TemporaryFolder folder;
  const ModelSpec model = model_of("gpt2", 2, 2);
  std::promise<void> is_suspected;
  bool is_proposed = false;  // rank 0 only
  const auto proposal = [&]() -> std::optional<PlanProposal> {
    if (std::exchange(is_proposed, true)) return std::nullopt;
    is_suspected.set_value();
    return PlanProposal{.plan = copies(model, 1), .why = "slow", .is_provisional = true};
  };
  std::future<ControlAnswer> asked = std::async(std::launch::async, [&] {
    is_suspected.get_future().wait();
    return value_or_throw(send_request(folder.path(), switch_request_json(copies(model, 3)),
                                       Deadline::after(Seconds(60), "an answer")));
  });
  const auto begin_time = std::chrono::steady_clock::now();
  const auto ends = run_all({.requests = folder.path(),
                             .refusal = [](int, int) { return std::nullopt; },
                             .proposal = proposal,
                             .provisional_status = [] { return ProvisionalStatus::open; }});
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count(), kSoon);
  for (const std::vector<ObservedOutcome>& own : ends) {
    ASSERT_EQ(own.size(), 2U);
    EXPECT_EQ(own[0].end.why_not, "rank 0: its reason no longer applies");
    EXPECT_EQ(own[1].end.why_not, "");
    EXPECT_EQ(own[1].end.to, copies(model, 3));
  }
  EXPECT_TRUE(asked.get().is_done);
}

// Connections that were made for a refused plan are closed immediately, and not only with the next plan.
TEST(PlanSwitchController, ConnectionsOfARefusedPlanAreClosed) {
  const TemporaryFolder folder;
  const ModelSpec model = model_of("gpt2", 2, 2);
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::set<int>> dropped;  // [epoch]: ranks
  int num_proposals = 0;                 // rank 0 only
  const auto proposal = [&]() -> std::optional<PlanProposal> {
    return PlanProposal{.plan = copies(model, 3), .why = "slow", .is_provisional = ++num_proposals == 1};
  };
  const auto drop = [&](int rank, int epoch) {
    const std::lock_guard lock(mutex);
    dropped[epoch].insert(rank);
    changed.notify_all();
  };
  // The second begins when the first has ended.
  const auto refusal = [&](int rank, int attempt) -> std::optional<std::string> {
    if (attempt == 0) return std::nullopt;
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::duration<double>(kSoon),
                                 [&] { return dropped[1].contains(rank); }));
    EXPECT_FALSE(dropped.contains(0)) << "the run uses this epoch";
    return std::nullopt;
  };
  const auto ends = run_all({.requests = folder.path(),
                             .refusal = refusal,
                             .proposal = proposal,
                             .provisional_status = [] { return ProvisionalStatus::rejected; },
                             .dropped = drop});
  for (const std::vector<ObservedOutcome>& own : ends) {
    ASSERT_EQ(own.size(), 2U);
    EXPECT_EQ(own[0].end.why_not, "rank 0: its reason no longer applies");
    EXPECT_EQ(own[1].end.why_not, "");
  }
}

// A finding that stays provisional gives way to a scripted plan, which is prepared in time.
TEST(PlanSwitchController, ScriptDoesNotWaitForProvisionalFinding) {
  constexpr int kLater = 30;
  const TemporaryFolder folder;
  const ModelSpec model = model_of("gpt2", 2, 2);
  bool is_proposed = false;  // rank 0 only
  const auto proposal = [&]() -> std::optional<PlanProposal> {
    if (std::exchange(is_proposed, true)) return std::nullopt;
    return PlanProposal{.plan = copies(model, 1), .why = "slow", .is_provisional = true};
  };
  const auto ends = run_all({.script = {{kLater, copies(model, 3)}},
                             .requests = folder.path(),
                             .refusal = [](int, int) { return std::nullopt; },
                             .proposal = proposal,
                             .provisional_status = [] { return ProvisionalStatus::open; }});
  for (const std::vector<ObservedOutcome>& own : ends) {
    ASSERT_EQ(own.size(), 2U);
    EXPECT_EQ(own[0].end.why_not, "rank 0: its reason no longer applies");
    EXPECT_LT(own[0].step, kLater);
    EXPECT_EQ(own[1].end.why_not, "");
    EXPECT_EQ(own[1].step, kLater);
    EXPECT_LT(own[1].begun, kLater);
  }
}

TEST(PlanSwitchController, RefusedScriptDelaysNoRank) {
  const ModelSpec model = model_of("gpt2", 2, 2);
  const auto begin_time = std::chrono::steady_clock::now();
  const auto ends = run_all({.script = {{kDue, copies(model, 3)}, {kDue + 5, copies(model, 1)}},
                             .refusal = last_rank_refuses_first_attempt});
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count(), kSoon);
  for (const std::vector<ObservedOutcome>& own : ends) {
    ASSERT_EQ(own.size(), 2U);
    EXPECT_EQ(own[0].end.why_not, "rank 2: too small here");
    EXPECT_EQ(own[0].step, kDue);
    EXPECT_EQ(own[1].end.why_not, "");
    EXPECT_EQ(own[1].step, kDue + 5);
  }
}

}  // namespace
}  // namespace optimus
