// A pool that runs numbered tasks. Threads take numbers from an atomic counter, spin for moments between two runs and
// sleep otherwise (no CPU when idle). Results never depend on which thread ran a task.
//
// A run waits for tasks that were begun, not for threads: one that has lost its core to another process is not needed,
// and the others do its share. On cores shared with the HTTP side a wait for every thread at every run would make each
// loss of one core a loss of all.
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
  bool join(uint32_t epoch);
  void leave();
  void end();

  static constexpr uint64_t kOpen = uint64_t(1) << 31;
  static uint32_t inside(uint64_t gate) { return uint32_t(gate & (kOpen - 1)); }

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
  Signal left_;   // counts the times that the last worker has left a closed run; the caller watches it
  // The run that is open, if any: its epoch in the upper half, whether it may be joined (kOpen), workers inside.
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<int32_t> next_{0};
  std::atomic<bool> ending_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // written by whoever set `failed_`, read after all have left
  int32_t count_ = 0;
  Function function_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace interlingua
