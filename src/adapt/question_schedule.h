// QuestionSchedule: determines how often an unchanged question is weighed again. Pure; one thread.
#pragma once

#include <algorithm>
#include <string>

namespace optimus {

class QuestionSchedule {
 public:
  // Whether the question with this key is due. If so, the wait before the same question is due again
  // doubles. A question with another key is due at once.
  bool take_turn(const std::string& key, double now) {
    if (key != key_) wait_ = 0;
    if (now - asked_at_ < wait_) return false;
    key_ = key, asked_at_ = now, wait_ = std::clamp(2 * wait_, kFirstWait, kLongestWait);
    return true;
  }
  // The answer to this question was refused: it is due again after the longest wait.
  void back_off(const std::string& key, double now) { key_ = key, asked_at_ = now, wait_ = kLongestWait; }

 private:
  static constexpr double kFirstWait = 5, kLongestWait = 300;  // seconds
  std::string key_;
  double asked_at_ = 0, wait_ = 0;
};

}  // namespace optimus
