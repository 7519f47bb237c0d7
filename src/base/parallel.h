// Ordered parallel map: transforms items on several threads and consumes the results in input order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace optimus {

// Calls produce() until it returns nullopt, transform() on `num_threads` threads, and consume() with the
// results in the order in which the items were produced. produce() and consume() run on the calling thread.
// At most 2 * num_threads items are in flight, so memory is bounded. The first exception that any of the
// three functions throws is rethrown here after all threads have exited.
template <typename Item, typename Result>
void transform_in_order(int num_threads, const std::function<std::optional<Item>()>& produce,
                        const std::function<Result(Item)>& transform,
                        const std::function<void(Result)>& consume) {
  std::mutex mutex;
  std::condition_variable has_work;
  bool is_stopping = false;
  std::deque<std::packaged_task<Result()>> queue;
  std::deque<std::future<Result>> results;
  std::vector<std::jthread> threads;
  for (int t = 0; t < num_threads; ++t)
    threads.emplace_back([&] {
      while (true) {
        std::unique_lock lock(mutex);
        has_work.wait(lock, [&] { return is_stopping || !queue.empty(); });
        if (is_stopping) return;
        auto task = std::move(queue.front());
        queue.pop_front();
        lock.unlock();
        task();
      }
    });
  // Stops the threads before they are joined, even if an exception is thrown below.
  struct StopGuard {
    std::mutex& mutex;
    std::condition_variable& has_work;
    bool& is_stopping;
    ~StopGuard() {
      {
        const std::lock_guard lock(mutex);
        is_stopping = true;
      }
      has_work.notify_all();
    }
  } stop_guard{mutex, has_work, is_stopping};
  const auto consume_oldest = [&] {
    std::future<Result> oldest = std::move(results.front());
    results.pop_front();
    consume(oldest.get());
  };
  while (std::optional<Item> item = produce()) {
    std::packaged_task<Result()> task(
        [&transform, item = std::move(*item)]() mutable { return transform(std::move(item)); });
    results.push_back(task.get_future());
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(task));
    }
    has_work.notify_one();
    if (results.size() >= 2 * static_cast<std::size_t>(num_threads)) consume_oldest();
  }
  while (!results.empty()) consume_oldest();
}

}  // namespace optimus
