// A pool that runs numbered tasks. Threads take numbers from an atomic counter, spin for moments while a step is open and
// sleep otherwise (no CPU when idle). Results never depend on which thread ran a task.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <type_traits>
#include <vector>

namespace interlingua {

class ThreadPool {
 public:
  // The caller counts as one of `threads`. Throws std::system_error when the system gives no more threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return int(workers_.size()) + 1; }

  // Calls task(i, thread) for i in [0, count), on all threads; returns when all are done. Not reentrant. What a task
  // throws first is thrown here; tasks that had not begun by then are left out.
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
  void end();

  // A counter that others wait for: it is read for some moments, then the waiting thread sleeps in the kernel.
  struct alignas(64) Signal {
    std::atomic<uint32_t> value{0};
    std::atomic<uint32_t> sleepers{0};
    void add(uint32_t change);
    uint32_t wait_while(uint32_t old);
  };

  std::vector<std::thread> workers_;
  // One line each: they are written by different threads.
  Signal epoch_;  // counts `run` calls; workers watch it
  Signal idle_;   // counts workers that have finished an epoch; the caller watches it
  alignas(64) std::atomic<int32_t> next_{0};
  std::atomic<bool> ending_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // written by whoever set `failed_`, read after all are idle
  int32_t count_ = 0;
  Function function_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace interlingua
