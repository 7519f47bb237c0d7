// See deciding.h. What is looked at between two steps: deciding_probe.cpp; what is prepared before it is sure: deciding_suspicion.cpp;
// what plans are worth: deciding_weigh.cpp; who is slow and not seen: deciding_away.cpp.
#include "adapt/deciding.h"

#include <algorithm>
#include <cmath>

#include "adapt/lifetime.h"
#include "base/error.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "plan/validate.h"

namespace optimus {
namespace {

constexpr std::size_t kRecent = 10;    // steps whose median is the step's time
constexpr double kLeastFactor = 1.12;  // what is found and less than this is about to end, or noise
constexpr int kSettling = 3;           // observations behind a change of plan that say little
// Observations of a new plan, until what slows the run down since it began would have been found.
constexpr int kVerdict = kSettling + 2 * static_cast<int>(kRecent);
constexpr double kNoticeable = 1.03;    // medians of ten steps vary by a percent or two
constexpr double kAnotherMatter = 1.3;  // slower than this since a change, it is answered at once
constexpr double kExplored = 0.01;      // of the time, for changes that are only likely to be better
// Observations of the first plan, or a phase's, until it is asked whether it is the best.
constexpr int kCalibrated = 30;
constexpr int kPuzzled = 30;  // observations in which the reason of longer steps should be found
constexpr double kFirstWait = 5, kLongestWait = 300;  // seconds between two looks at the same conditions

// Of the last ones.
double middle_step(const std::deque<double>& values, std::size_t most = kRecent) {
  const auto number = static_cast<std::ptrdiff_t>(std::min(most, values.size()));
  std::vector<double> sorted(values.end() - number, values.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

std::set<int> devices_of(const Plan& plan) {
  std::set<int> devices;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) devices.insert(stage.devices.begin(), stage.devices.end());
  return devices;
}

}  // namespace

Deciding::Deciding(Facts facts, const Plan& plan, Calibration& calibration)
    : facts_(std::move(facts)), cluster_(facts_.machines), calibration_(calibration), plan_(plan) {
  began_ = facts_.clock();
  begin_plan();
}

Deciding::~Deciding() {
  if (weighing_.valid()) weighing_.wait();
}

// What is slow is told by what was measured of such stages before; or by a plan's own first steps: of stages of these ranks, and where nothing
// was measured.
void Deciding::watch(const std::set<int>& by_first_steps) {
  Topology topology(plan_, cluster_, DeviceMap::identity(cluster_.num_devices()));
  auto usual = calibration_.baselines(work_, topology);
  std::erase_if(usual, [&](const auto& one) {
    const std::vector<int>& ranks = topology.ranks_of_group(one.first.first);
    return std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return by_first_steps.contains(rank); });
  });
  hasty_ = std::make_unique<Detector>(topology, hasty_options(), usual);
  detector_ = std::make_unique<Detector>(std::move(topology), DetectorOptions{}, usual);
  suspected_.clear(), num_watched_ = 0;
}

void Deciding::begin_plan() {
  work_ = stage_work(plan_, facts_.model, cluster_);
  watch();
  num_unexplained_ = 0;
  recent_.clear(), history_.clear(), num_seen_ = 0, is_clouded_ = false;
}

void Deciding::see(const Observation& seen) {
  if (seen.step < first_step_ || seen.num_ranks == 0) return;
  ++num_seen_, ++num_watched_, seen_step_ = seen.step;
  if (num_seen_ > kSettling || predicted_ == std::nullopt) recent_.push_back(seen.seconds);
  if (recent_.size() > kRecent) recent_.pop_front();
  findings_ = detector_->see(seen);
  // Who was slow before still is.
  if (is_misjudged()) watch(std::exchange(quiet_before_, {})), findings_.clear();
  if (facts_.foretold) findings_ = foretold(seen.step);
  if (num_watched_ <= kHeld) add_unless_found(held_);
  name_nodes();
  const bool is_slow = !is_quiet();
  was_slow_ |= is_slow;
  if (!is_slow) calibration_.learn(seen, work_, detector_->topology());
  if (num_watched_ == kHeld + 1) note_hidden();
  std::erase_if(away_, [&](const Away& one) { return one.until <= facts_.clock() || is_found(one.finding); });
  look_at_those_away();
  for (const Away& one : away_) findings_.push_back(one.finding);
  look_at_channels();
  suspect(seen);
  num_unexplained_ = is_unexplained() ? num_unexplained_ + 1 : 0;
  if (recent_.size() == kRecent) {
    note_how_it_runs();
    if (!is_told_ && !realised_) {
      const double now = middle_step(recent_);
      realised_ = before_ / now - 1;
      explored_ += pause_ + std::max(0.0, now - before_) * 2 * kRecent;
    }
  }
  // A plan is not blamed for what began while it was measured.
  if (num_seen_ <= kVerdict && (!began_since().empty() || is_held_up())) is_clouded_ = true;
  if (num_seen_ == kVerdict && verdict()) judge(*predicted_, *realised_), note_what_both_took();
  note_what_no_plan_answers();
  note_phase(seen);
  weigh_if_due();
  weigh_suspicion();
}

void Deciding::note_what_no_plan_answers() {
  for (const Finding& one : findings_) {
    const bool is_memory = one.cause == Cause::memory;
    if (!is_memory && one.cause != Cause::data_loading && one.cause != Cause::uneven_lengths) continue;
    const std::string place = is_memory ? fmt::format(" {}", one.where.front()) : "";
    if ((!is_memory && !decides()) || !told_.insert(word_of(one.cause) + place).second) continue;
    const std::string reason = is_memory ? "it will have no more room soon"
                               : one.cause == Cause::data_loading
                                   ? "data must be read faster"
                                   : "samples are dealt as evenly as they can be";
    stays_.push_back({text(one), reason, word_of(one.cause)});
  }
}

// What other batches or lengths would be good for is nothing that a plan changes by itself: it is learned otherwise then.
void Deciding::note_phase(const Observation& seen) {
  if (!decides()) return;
  if (!is_plateau_told_ && plateau_.has_stopped()) {
    is_plateau_told_ = true;
    stays_.push_back(
        {"the loss falls by less than 2 % in 200 steps", "larger batches are for --batch-ramp to say", ""});
  }
  lengths_.see(seen.lengths);
  constexpr double kOthers = 1.3;
  const double change = lengths_.change();
  if (change < kOthers && change > 1 / kOthers) return;
  stays_.push_back({fmt::format("lengths of documents have changed: attention costs {:.2f}x", change),
                    "a better one is looked for", ""});
  // What plans took of other documents says nothing any more.
  lengths_ = {}, has_looked_for_better_ = false, is_clouded_ = true;
  ran_.clear(), least_.clear(), history_.clear();
}

// What the plan was not chosen for, and has not brought along itself: a stage that is too heavy is the plan's, and so may be what its first
// steps show, but for a device that others of its stage tell apart. A device of a host that was slow before is no news.
std::vector<Condition> Deciding::began_since() const {
  const Topology& topology = detector_->topology();
  const auto is_told_apart = [&](const Finding& finding) {
    return finding.cause == Cause::device && finding.where.front() < topology.num_ranks() &&
           topology.ranks_of_group(topology.group_of(finding.where.front())).size() > 1;
  };
  std::vector<Condition> result;
  for (const Finding& finding : findings_) {
    if (!is_answerable(finding.cause) || finding.factor <= kLeastFactor) continue;
    if (finding.cause == Cause::heavy_stage) continue;
    if (finding.since < first_step_ + kSettling && !is_told_apart(finding)) continue;
    for (const int where : finding.where) {
      const Condition one{finding.cause, where, finding.factor};
      const bool is_known = std::any_of(wished_for_.begin(), wished_for_.end(),
                                        [&](const Condition& known) { return is_part_of(one, known); });
      if (!is_known) result.push_back(one);
    }
  }
  return concerning(plan_, result);
}

// Since the plan's first steps, by what slows down any plan.
bool Deciding::is_held_up() const {
  return std::any_of(findings_.begin(), findings_.end(), [&](const Finding& one) {
    return (one.cause == Cause::cluster || one.cause == Cause::data_loading) &&
           one.since >= first_step_ + kSettling;
  });
}

std::optional<double> Deciding::verdict() const {
  return predicted_ && num_seen_ >= kVerdict && !is_clouded_ ? realised_ : std::nullopt;
}

// Two changes within a few steps are refused where they may answer the same, or the noise of a new plan's first steps; not where something
// else has become slow meanwhile.
double Deciding::since_switch() const {
  for (const Condition& one : began_since())
    if (one.factor >= kAnotherMatter) return Situation{}.since_switch;
  return facts_.clock() - switched_at_;
}

// Gains are of steps a second here; a situation has parts of the step.
void Deciding::judge(double predicted, double realised) {
  const double miss = std::log((1 + predicted) / (1 + realised));
  ++judged_.num_missed;
  if (predicted > 0) {  // for a second copy of the state some speed is given up
    ++judged_.count;
    judged_.promised += predicted / (1 + predicted), judged_.kept += realised / (1 + realised);
  }
  judged_.misses += miss, judged_.squares += miss * miss;
  judged_.shortfalls += std::pow(std::max(0.0, miss), 2);
}

double Deciding::Judged::doubt() const {
  constexpr int kRightBefore = 3;  // one miss is no reason to believe nothing any more
  return std::sqrt(shortfalls / (num_missed + kRightBefore));
}

// Nothing has happened between the two plans, but what is found may look otherwise from each of them, where the cost model errs about one:
// what they took holds for what is found on the other, too. So the run does not price by the model what it has just left for being worse.
void Deciding::note_what_both_took() {
  if (*realised_ >= 0)
    return;  // nobody wants to go back, and what made it quicker may be that something is over
  if (facts_.foretold) return;  // who knows what comes has not measured it before the change
  const auto note = [&](const Plan& plan, const std::vector<Condition>& found_on_other, double seconds) {
    const std::string key = key_of(found_on_other, plan);
    if (!key.empty())
      ran_[ran_key(plan, key)] = seconds;  // where nothing is found plans have their usual steps
  };
  note(plan_, wished_for_, middle_step(recent_));
  note(*before_plan_, conditions(), before_);
}

void Deciding::tell(const Judged& judged, Situation& situation) {
  situation.switches = judged.switches;
  situation.num_judged = judged.count, situation.num_missed = judged.num_missed;
  situation.gain_promised = judged.promised, situation.gain_kept = judged.kept;
  if (judged.num_missed == 0) return;
  situation.mean_miss = judged.misses / judged.num_missed;
  situation.miss_spread = std::sqrt(
      std::max(0.0, judged.squares / judged.num_missed - situation.mean_miss * situation.mean_miss));
}

std::vector<Finding> Deciding::foretold(std::int64_t step) const {
  const double now = facts_.clock() - facts_.foretold->begins;
  std::vector<Finding> result;
  for (const auto& [condition, at, length] : facts_.foretold->line.conditions) {
    const int places = condition.cause == Cause::device ? cluster_.num_devices() : cluster_.num_nodes();
    if (at <= now && now < at + length && condition.where >= 0 && condition.where < places)
      result.push_back({condition.cause, {condition.where}, condition.factor, 0, step});
  }
  return result;
}

double Deciding::until_foretold() const {
  const double now = facts_.clock() - facts_.foretold->begins;
  double rest = facts_.policy.horizon;
  for (const TimedCondition& one : facts_.foretold->line.conditions)
    for (const double change : {one.at, one.at + one.length})
      if (change > now) rest = std::min(rest, change - now);
  return rest;
}

// What begins is found some steps later: steps count for conditions that stayed the same until then.
void Deciding::note_how_it_runs() {
  history_.emplace_back(key_of(conditions(), plan_), middle_step(recent_));
  if (std::ssize(history_) <= kHeld) return;
  const std::string& key = history_.front().first;
  if (std::all_of(history_.begin(), history_.end(), [&](const auto& one) { return one.first == key; })) {
    const RanKey own = ran_key(plan_, key);
    ran_[own] = history_.front().second;
    if (key.empty()) {
      double& least = least_.try_emplace(own, history_.front().second).first->second;
      least = std::min(least, history_.front().second);
    }
  }
  history_.pop_front();
}

std::vector<Condition> Deciding::conditions(const std::vector<Finding>& findings) const {
  std::vector<Condition> result;
  for (const Finding& finding : findings) {
    if (!is_answerable(finding.cause) || finding.factor <= kLeastFactor) continue;
    // Of nodes that cannot be told apart any one may be slow: an answer must be good whichever it is.
    for (const int where : finding.where) result.push_back({finding.cause, where, finding.factor});
  }
  return result;
}

// Of the plan.
std::set<int> Deciding::quiet_devices() const {
  std::set<int> devices = devices_of(plan_);
  for (const Condition& one : conditions())
    std::erase_if(devices, [&](int device) {
      if (one.cause == Cause::host) return one.where == cluster_.node_of(Device{device});
      return one.cause == Cause::device && one.where == device;
    });
  return devices;
}

std::vector<Condition> Deciding::concerning(const Plan& plan,
                                            const std::vector<Condition>& conditions) const {
  const std::set<int> devices = devices_of(plan);
  std::set<int> nodes;
  for (const int device : devices) nodes.insert(cluster_.node_of(Device{device}));
  std::vector<Condition> result;
  for (const Condition& one : conditions)
    if (one.cause == Cause::heavy_stage || (one.cause == Cause::device ? devices : nodes).contains(one.where))
      result.push_back(one);
  return result;
}

std::string Deciding::key_of(const std::vector<Condition>& conditions, const Plan& plan) const {
  if (conditions.empty()) return "";
  std::string key;
  // Of nearly the same severity: within a fifth.
  for (const Condition& one : concerning(plan, conditions))
    key += fmt::format("{} {} {} ", word_of(one.cause), one.where, std::lround(4 * std::log2(one.factor)));
  return key;
}

Deciding::RanKey Deciding::ran_key(const Plan& plan, const std::string& conditions) const {
  if (!conditions.empty() || !facts_.machines.speed_factors.empty() || facts_.machines.groups.size() > 1)
    return {plan_hash(plan), conditions};
  Plan anywhere = plan;
  std::map<int, int> nodes;  // in the order in which the plan has them
  const int each = facts_.machines.groups.front().devices_per_node;
  for (Pipeline& pipeline : anywhere.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices) {
        const int node = cluster_.node_of(Device{device});
        device = nodes.try_emplace(node, static_cast<int>(nodes.size())).first->second * each + device % each;
      }
  return {plan_hash(anywhere), conditions};
}

void Deciding::weigh_if_due() {
  // Who knows what comes need not measure it first.
  const std::size_t enough = facts_.foretold ? 1 : kRecent;
  if (weighing_.valid() || asked_ || probing_ != Probing::no || recent_.size() < enough) return;
  const std::vector<Condition> all = conditions(), now = conditions(felt(findings_, kRecent));
  if (now.size() < all.size() && decides())
    note_stay({evidence_of(findings_), "steps take no longer", word_of(all.front().cause)}, all);
  // What was measured by then may speak for another plan, though nothing is slow.
  const bool is_new =
      facts_.looks_for_better && decides() && !has_looked_for_better_ && num_seen_ >= kCalibrated;
  if (now.empty() && !home_ && !has_disappointed(predicted_, verdict()) && !is_new) return;
  if (num_unexplained_ > 0 && num_unexplained_ <= kPuzzled) return;
  const std::string key = question_key();
  const double time = facts_.clock();
  if (key != weighed_) wait_ = 0;
  if (time - weighed_at_ < wait_) return;
  if (num_seen_ >= kCalibrated) has_looked_for_better_ = true;
  weighed_ = key, weighed_at_ = time, wait_ = std::clamp(2 * wait_, kFirstWait, kLongestWait);
  begin_weighing(false);
}

// A device that is alone in its stage was well until the plan changed, and is slow since then: what was expected of the stage was wrong.
bool Deciding::is_misjudged() const {
  const Topology& topology = detector_->topology();
  return std::any_of(findings_.begin(), findings_.end(), [&](const Finding& one) {
    if (one.cause != Cause::device || one.since > first_step_ + 1) return false;
    const int rank = one.where.front();
    return quiet_before_.contains(rank) && rank < topology.num_ranks() &&
           topology.ranks_of_group(topology.group_of(rank)).size() == 1;
  });
}

// Other plans would be compared with steps whose reason is not known yet, and may be theirs, too.
bool Deciding::is_unexplained() const {
  constexpr double kMuchLonger = 1.15;
  return !facts_.foretold && std::ssize(recent_) >= kHastySteps && concerning(plan_, conditions()).empty() &&
         times_usual(kHastySteps).value_or(1) >= kMuchLonger;
}

std::optional<double> Deciding::times_usual(std::size_t last_steps) const {
  const auto usual = least_.find(ran_key(plan_, ""));
  if (usual == least_.end()) return std::nullopt;
  return middle_step(recent_, last_steps) / usual->second;
}

bool Deciding::are_steps_longer(std::size_t last_steps) const {
  if (facts_.foretold) return true;  // they are about to be
  return times_usual(last_steps).value_or(kNoticeable) >= kNoticeable;
}

std::vector<Finding> Deciding::felt(std::vector<Finding> findings, std::size_t last_steps) const {
  if (recent_.empty() || are_steps_longer(last_steps)) return findings;
  std::erase_if(findings, [&](const Finding& one) {
    return one.cause != Cause::heavy_stage && !concerning(plan_, conditions({one})).empty();
  });
  return findings;
}

void Deciding::begin_weighing(bool is_suspicion) {
  is_suspicion_ = is_suspicion;
  weighing_ =
      std::async(std::launch::async, [this, question = question(is_suspicion)] { return weigh(question); });
}

// Who is left out counts, too: it may be well again.
std::string Deciding::question_key() const {
  std::string key = key_of(conditions(felt(findings_, kRecent)), plan_) + plan_hash(plan_);
  for (const Away& one : away_)
    key += fmt::format(" {} {}", word_of(one.finding.cause), one.finding.where.front());
  return has_disappointed(predicted_, verdict()) ? key + " disappointed" : key;
}

Deciding::Question Deciding::question(bool is_suspicion) const {
  const std::size_t steps = is_suspicion ? std::size_t{kHastySteps} : kRecent;
  const std::vector<Finding> findings = felt(is_suspicion ? suspected_ : findings_, steps);
  Question question;
  question.plan = plan_, question.conditions = conditions(findings);
  question.predicted = predicted_, question.realised = verdict(), question.judged = judged_;
  // Of the one before it is known for a while what it takes now; of others, only what they took when other things were found.
  const bool is_fresh =
      num_seen_ <= 2 * kVerdict && !facts_.foretold && !is_suspicion && began_since().empty();
  if (is_fresh && left_ && question.realised.value_or(0) < 1 / kNoticeable - 1) {
    question.seconds_before = before_;
    question.earlier.push_back(*left_);
  } else {
    if (home_) question.earlier.push_back(*home_);
    if (left_ && left_ != home_) question.earlier.push_back(*left_);
  }
  question.machines = calibration_.refreshed(facts_.machines);
  question.ring_factor = calibration_.ring_factor(facts_.machines);
  question.is_suspicion = is_suspicion;
  question.seconds = middle_step(recent_, steps);
  if (facts_.last_step > 0)
    question.run_left =
        question.seconds * static_cast<double>(std::max<std::int64_t>(0, facts_.last_step - seen_step_));
  question.since_switch = since_switch();
  question.doubt = calibration_.doubt(BlockRole::layer) / std::sqrt(double{kRecent});
  question.exploration_left = std::max(0.0, kExplored * (facts_.clock() - began_) - explored_);
  const double layers = calibration_.rate(BlockRole::layer).value_or(1);
  for (std::size_t role = 0; role < kBlockRoles; ++role)
    question.rates[role] = calibration_.rate(static_cast<BlockRole>(role)).value_or(layers) / layers;
  question.ran = ran_;
  if (facts_.foretold) {
    question.true_rest = until_foretold();
    const std::string key = key_of(question.conditions, plan_);
    question.is_settled = !history_.empty() && std::all_of(history_.begin(), history_.end(),
                                                           [&](const auto& one) { return one.first == key; });
  }
  question.evidence = evidence_of(findings);
  for (const Finding& finding : findings) {
    if (!is_answerable(finding.cause)) continue;
    const double age = question.seconds * 10;  // found after some ten steps
    question.ongoing.push_back({finding.cause, finding.factor, age});
    for (const int where : finding.where) question.spreads[{finding.cause, where}] = finding.spread;
  }
  if (question.evidence.empty())
    question.evidence = was_slow_ ? "what slowed the run is over" : "by what steps were measured to take";
  return question;
}

std::string Deciding::evidence_of(const std::vector<Finding>& findings) {
  std::string evidence;
  for (const Finding& finding : findings)
    if (is_answerable(finding.cause)) evidence += (evidence.empty() ? "" : ", ") + text(finding);
  return evidence;
}

std::optional<PlanWish> Deciding::wish() {
  if (!weighing_.valid() || weighing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return std::nullopt;
  Answer answer = weighing_.get();
  if (answer.stay && decides() && !is_suspicion_) note_stay(std::move(*answer.stay), answer.conditions);
  if (!answer.wish || recent_.empty()) return std::nullopt;
  asked_ = Asked{std::move(answer.conditions), answer.pause, middle_step(recent_)};
  num_suspecting_ = 0, suspected_at_ = facts_.clock();
  if (is_suspicion_ && suspicion() == Suspicion::wrong) return withdrawn(), std::nullopt;
  return std::move(answer.wish);
}

// Once while the same is in force, however often it is weighed.
void Deciding::note_stay(PlanStay stay, const std::vector<Condition>& conditions) {
  constexpr double kWorthTelling = 1.3;
  std::string told;
  for (const Condition& one : conditions)
    if (one.factor >= kWorthTelling) told += fmt::format("{} {} ", word_of(one.cause), one.where);
  if (!told.empty() && told_.insert(told + stay.reason).second) stays_.push_back(std::move(stay));
}

void Deciding::refused() {
  asked_.reset();
  weighed_ = question_key(), weighed_at_ = facts_.clock(), wait_ = kLongestWait;
}

void Deciding::took(const Plan& plan, const std::optional<PlanWish>& wish, std::int64_t step) {
  first_step_ = step + 1;
  quiet_before_ = quiet_devices();
  if (weighing_.valid()) weighing_.wait(), weighing_ = {};
  const bool goes_back = (home_ && *home_ == plan) || (left_ && *left_ == plan);
  left_ = wish && !goes_back ? std::optional(plan_) : std::nullopt;
  before_plan_ = wish ? std::optional(plan_) : std::nullopt;
  if (wish && !home_) home_ = plan_;
  if (home_ && *home_ == plan) home_.reset();
  if (!wish) home_.reset();  // somebody else knows better
  if (probing_ != Probing::no) has_looked_at_channels_ = false;
  Asked asked = std::exchange(asked_, std::nullopt).value_or(Asked{});
  // When it was suspected most of them had been quick.
  if (wish && (is_suspicion_ || asked.seconds == 0) && !recent_.empty()) asked.seconds = middle_step(recent_);
  networks_.reset(), probing_ = Probing::no, last_look_.reset();
  // With another batch or length another plan may be the best.
  if (plan.batch != plan_.batch || plan.sequence_length != plan_.sequence_length)
    has_looked_for_better_ = false;
  if (wish && !facts_.foretold && !asked.conditions.empty())
    ran_.try_emplace(ran_key(plan_, key_of(asked.conditions, plan_)), asked.seconds);
  plan_ = plan, switched_at_ = facts_.clock();
  hold(wish ? findings_ : std::vector<Finding>());
  predicted_ = wish ? std::optional(wish->predicted_gain) : std::nullopt;
  before_ = asked.seconds, pause_ = asked.pause;
  wished_for_ = wish ? std::move(asked.conditions) : std::vector<Condition>();
  realised_.reset(), is_told_ = !wish, stays_.clear(), told_.clear(), lengths_ = {};
  if (wish) ++judged_.switches;
  begin_plan();
}

std::optional<double> Deciding::realised() {
  const std::optional<double> came = verdict();
  if (is_told_ || !came) return std::nullopt;
  is_told_ = true;
  return came;
}

}  // namespace optimus
