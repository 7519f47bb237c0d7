// QuestionSchedule: determines how often plans are compared again while the question has not changed. Pure;
// one thread.
#pragma once

#include <algorithm>
#include <string>

namespace optimus {

class QuestionSchedule {
 public:
  // Returns whether the question with this key is due. If so, doubles the waiting time until the same
  // question is due again. A question with a new key is due at once.
  bool take_if_due(const std::string& key, double now) {
    if (key != key_) wait_ = 0;
    if (now - last_time_ < wait_) return false;
    key_ = key, last_time_ = now, wait_ = std::clamp(2 * wait_, kFirstWait, kMaxWait);
    return true;
  }
  // Called when the answer to this question was refused. The question is due again after the maximum waiting
  // time.
  void back_off(const std::string& key, double now) { key_ = key, last_time_ = now, wait_ = kMaxWait; }

 private:
  static constexpr double kFirstWait = 5, kMaxWait = 300;  // seconds
  std::string key_;
  double last_time_ = 0, wait_ = 0;
};

}  // namespace optimus
