#include "threads.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <utility>

#include "cpu.h"

namespace interlingua {
namespace {

// How often a counter is read before its reader sleeps, some 30 us: longer than tasks differ in length, far shorter than
// a slice of the scheduler. A thread that spins on for one that lost its core keeps that core's work from moving over.
// Plain reads and no PAUSE: a virtual machine leaves the guest when it sees PAUSE in a loop, which turned a hand-over
// of 1 us into 40.
constexpr int kReads = 30000;

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain word");

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

}  // namespace

void ThreadPool::Signal::add(uint32_t change) {
  value.fetch_add(change, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex(value, FUTEX_WAKE, INT_MAX);
}

uint32_t ThreadPool::Signal::wait_while(uint32_t old) {
  for (int i = 0; i < kReads; i++) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  uint32_t now;
  while ((now = value.load(std::memory_order_seq_cst)) == old) futex(value, FUTEX_WAIT, old);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  return now;
}

ThreadPool::ThreadPool(int threads) {
  try {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {
    end();
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  ending_.store(true, std::memory_order_relaxed);
  epoch_.add(1);
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::take_tasks(int thread) {
  try {
    for (int32_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) function_(context_, i, thread);
  } catch (...) {
    next_.store(count_, std::memory_order_relaxed);
    if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
  }
}

void ThreadPool::run_erased(int32_t count, Function function, void* context) {
  if (count <= 1 || workers_.empty()) {
    for (int32_t i = 0; i < count; i++) function(context, i, 0);
    return;
  }
  // Nobody is inside: what workers read may be written.
  count_ = count;
  function_ = function;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = epoch_.value.load(std::memory_order_relaxed) + uint32_t(1);
  gate_.store((epoch & 0xffffffffu) << 32 | kOpen, std::memory_order_release);
  epoch_.add(1);
  take_tasks(0);
  if (inside(gate_.fetch_and(~kOpen, std::memory_order_acq_rel))) {
    for (;;) {
      const uint32_t left = left_.value.load(std::memory_order_acquire);
      if (!inside(gate_.load(std::memory_order_acquire))) break;
      left_.wait_while(left);
    }
  }
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

bool ThreadPool::join(uint32_t epoch) {
  uint64_t gate = gate_.load(std::memory_order_acquire);
  while (uint32_t(gate >> 32) == epoch && (gate & kOpen))
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
  return false;
}

void ThreadPool::leave() {
  const uint64_t gate = gate_.fetch_sub(1, std::memory_order_acq_rel) - 1;
  if (!inside(gate) && !(gate & kOpen)) left_.add(1);
}

void ThreadPool::work(int thread) {
  FlushToZero flush;
  for (uint32_t seen = 0;;) {
    seen = epoch_.wait_while(seen);
    if (ending_.load(std::memory_order_relaxed)) return;
    if (!join(seen)) continue;  // over already, or another has begun
    take_tasks(thread);
    leave();
  }
}

}  // namespace interlingua
