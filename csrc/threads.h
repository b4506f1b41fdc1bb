// A pool that runs numbered tasks. Threads take numbers from an atomic counter, spin while a step is open and sleep
// between steps (no CPU when idle). Results never depend on which thread ran a task.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace interlingua {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller counts as one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return int(workers_.size()) + 1; }

  // Wakes the workers for a series of `run` calls; they spin in between until `close`.
  void open();
  void close();

  // Calls task(i, thread) for i in [0, count), on all threads; returns when all are done. Not reentrant.
  template <class Task>
  void run(int32_t count, Task&& task) {
    using Plain = std::remove_reference_t<Task>;
    run_erased(count, [](void* context, int32_t i, int thread) { (*static_cast<Plain*>(context))(i, thread); },
               const_cast<void*>(static_cast<const void*>(&task)));
  }

 private:
  using Function = void (*)(void*, int32_t, int);
  void run_erased(int32_t count, Function function, void* context);
  void work(int thread);
  void take_tasks(int thread);

  std::vector<std::thread> workers_;
  // One line each: they are written by different threads.
  alignas(64) std::atomic<uint64_t> epoch_{0};  // counts `run` calls; workers watch it
  alignas(64) std::atomic<int32_t> next_{0};
  alignas(64) std::atomic<int32_t> busy_{0};  // workers that have not finished the current epoch
  alignas(64) std::atomic<bool> open_{false};
  std::atomic<bool> ending_{false};
  int32_t count_ = 0;
  Function function_ = nullptr;
  void* context_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace interlingua
