#include "threads.h"

#include <sched.h>

#include "cpu.h"

namespace interlingua {
namespace {

// Spins politely: on a shared machine the thread that we wait for may be the one that needs our core. Plain reads and no
// PAUSE: a virtual machine leaves the guest when it sees PAUSE in a loop, which turned a hand-over of 1 us into 40.
class Spin {
 public:
  void pause() {
    if (++count_ % kReadsBeforeYield == 0) sched_yield();
  }

 private:
  static constexpr uint32_t kReadsBeforeYield = 20000;  // some 20 us
  uint32_t count_ = 0;
};

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    open_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::open() {
  if (workers_.empty()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
  }
  wake_.notify_all();
}

void ThreadPool::close() { open_ = false; }

void ThreadPool::take_tasks(int thread) {
  for (int32_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) function_(context_, i, thread);
}

void ThreadPool::run_erased(int32_t count, Function function, void* context) {
  if (count <= 1 || workers_.empty()) {
    for (int32_t i = 0; i < count; i++) function(context, i, 0);
    return;
  }
  count_ = count;
  function_ = function;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(int32_t(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  take_tasks(0);
  for (Spin spin; busy_.load(std::memory_order_acquire) != 0;) spin.pause();
}

void ThreadPool::work(int thread) {
  FlushToZero flush;
  uint64_t seen = 0;
  for (;;) {
    Spin spin;
    while (epoch_.load(std::memory_order_acquire) == seen) {
      if (ending_.load(std::memory_order_relaxed)) return;
      if (!open_.load(std::memory_order_relaxed)) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return open_.load() || ending_.load(); });
      }
      spin.pause();
    }
    seen++;
    take_tasks(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace interlingua
