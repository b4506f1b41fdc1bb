// A pool that runs numbered tasks. Threads take numbers from an atomic counter, spin for moments between two runs and
// sleep otherwise (no CPU when idle). Results never depend on which thread ran a task.
//
// A run waits for tasks that were begun, not for threads: one that has lost its core to another process is not needed,
// and the others do its share. On cores shared with the HTTP side a wait for every thread at every run would make each
// loss of one core a loss of all.
//
// Each thread (of many, each few) has a share of a run's tasks, takes these first and then helps the others. Shares are cut
// by number alone: tasks that lie side by side, and those of the same rows in one run after another, find what they read in
// the caches of their core.
//
// On a machine of several NUMA nodes each thread stays on one of them, the nodes have threads in proportion to their CPUs,
// and each node has one share, so that memory can lie where the threads are that read it (`place`).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "numa.h"

namespace interlingua {

class ThreadPool {
 public:
  // The caller counts as one of `threads`, the first. Throws std::system_error when the system gives no more threads.
  explicit ThreadPool(int threads, const std::vector<NumaNode>& nodes = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return int(workers_.size()) + 1; }
  bool one_node() const { return homes_.empty(); }

  // Calls task(i, thread) for i in [0, count), on all threads; returns when all are done. Not reentrant. What a task
  // throws first is thrown here; tasks that had not begun by then are left out.
  //
  // The first `common` tasks are in no share and begun before all others, which may wait for them. No other task
  // may wait for one.
  template <class Task>
  void run(int32_t count, Task&& task, int32_t common = 0) {
    using Plain = std::remove_reference_t<Task>;
    run_erased(count, common, [](void* context, int32_t i, int thread) { (*static_cast<Plain*>(context))(i, thread); },
               const_cast<void*>(static_cast<const void*>(&task)));
  }

  // Where the caller of many runs should stay meanwhile (BoundCaller); empty on one node.
  const std::vector<int>& caller_cpus() const;
  // Where mapped memory shall lie that was not written yet. `place`: pieces in the order of the tasks that read them, each
  // on the node whose share they are in. `interleave`: what any thread may read. Neither does anything on one node.
  void place(const uint8_t* data, size_t bytes) const;
  void interleave(const uint8_t* data, size_t bytes) const;
  int memory_error() const { return memory_error_; }  // an errno if the system refused some of it
  // For operators: "2 NUMA nodes", and what the system refused; empty on one node.
  std::string placement() const;

 private:
  using Function = void (*)(void*, int32_t, int);
  struct Home {
    NumaNode node;
    int first;  // of its threads
  };
  // One line each: they are written by different threads.
  struct alignas(64) Share {
    std::atomic<int32_t> next{0};
    int32_t end = 0;
    void set(int32_t begin, int32_t new_end);
  };

  int32_t part(int32_t count, size_t share) const;  // where the share's part of `count` begins
  void run_erased(int32_t count, int32_t common, Function function, void* context);
  size_t share_of(int thread) const;
  void work(int thread, size_t share);
  void take_tasks(int thread, size_t share);
  void take(Share& share, int thread);
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
  std::vector<Home> homes_;  // none, or several
  mutable std::atomic<int> thread_error_{0}, memory_error_{0};  // errno of what the system refused
  // One line each: they are written by different threads.
  Signal epoch_;  // counts `run` calls; workers watch it
  Signal left_;   // counts the times that the last worker has left a closed run; the caller watches it
  // The run that is open, if any: its epoch in the upper half, whether it may be joined (kOpen), workers inside.
  alignas(64) std::atomic<uint64_t> gate_{0};
  Share common_;
  std::vector<int> firsts_;     // of each share's threads; by home, where there are homes
  std::vector<Share> shares_;
  std::atomic<bool> ending_{false};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // written by whoever set `failed_`, read after all have left
  Function function_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace interlingua
