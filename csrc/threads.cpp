#include "threads.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "cpu.h"

namespace interlingua {
namespace {

// How often a counter is read before its reader sleeps, some 30 us: longer than tasks differ in length, far shorter than
// a slice of the scheduler. A thread that spins on for one that lost its core keeps that core's work from moving over.
// Plain reads and no PAUSE: a virtual machine leaves the guest when it sees PAUSE in a loop, which turned a hand-over
// of 1 us into 40.
constexpr int kReads = 30000;

// Shares of a run on one node: each thread that has finished its own looks at the others.
constexpr int kMostShares = 8;

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

ThreadPool::ThreadPool(int threads, const std::vector<NumaNode>& nodes) {
  int64_t cpus = 0, before = 0;
  for (const NumaNode& node : nodes) cpus += int64_t(node.cpus.size());
  const auto first_after = [&](int64_t passed) { return int((threads * passed + cpus - 1) / cpus); };
  for (const NumaNode& node : nodes) {
    const int first = first_after(before);
    before += int64_t(node.cpus.size());
    if (first < first_after(before)) homes_.push_back({node, first});
  }
  if (homes_.size() < 2) homes_.clear();
  for (const Home& home : homes_) firsts_.push_back(home.first);
  if (homes_.empty()) {
    const int count = std::clamp(threads, 1, kMostShares);
    for (int i = 0; i < count; i++) firsts_.push_back(i * threads / count);
  }
  shares_ = std::vector<Share>(firsts_.size());
  try {
    for (int i = 1; i < threads; i++) {
      const size_t share = share_of(i);
      workers_.emplace_back([this, i, share] { work(i, share); });
      if (homes_.empty()) continue;
      if (int error = bind_thread(workers_.back().native_handle(), homes_[share].node.cpus)) thread_error_ = error;
    }
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

void ThreadPool::Share::set(int32_t begin, int32_t new_end) {
  end = new_end;
  next.store(begin, std::memory_order_relaxed);
}

size_t ThreadPool::share_of(int thread) const {
  return size_t(std::upper_bound(firsts_.begin(), firsts_.end(), thread) - firsts_.begin()) - 1;
}

int32_t ThreadPool::part(int32_t count, size_t share) const {
  return share == firsts_.size() ? count : int32_t(int64_t(count) * firsts_[share] / size());
}

void ThreadPool::take(Share& share, int thread) {
  // An empty share is only read: adding to it would take its line from those who look in next.
  if (share.next.load(std::memory_order_relaxed) >= share.end) return;
  for (int32_t i; (i = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) function_(context_, i, thread);
}

void ThreadPool::take_tasks(int thread, size_t share) {
  try {
    take(common_, thread);
    for (size_t i = 0; i < shares_.size(); i++) take(shares_[(share + i) % shares_.size()], thread);
  } catch (...) {
    for (Share& share : shares_) share.next.store(share.end, std::memory_order_relaxed);
    common_.next.store(common_.end, std::memory_order_relaxed);
    if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
  }
}

void ThreadPool::run_erased(int32_t count, int32_t common, Function function, void* context) {
  if (count <= 1 || workers_.empty()) {
    for (int32_t i = 0; i < count; i++) function(context, i, 0);
    return;
  }
  // Nobody is inside: what workers read may be written.
  function_ = function;
  context_ = context;
  common_.set(0, common);
  for (size_t i = 0; i < shares_.size(); i++)
    shares_[i].set(common + part(count - common, i), common + part(count - common, i + 1));
  const uint64_t epoch = epoch_.value.load(std::memory_order_relaxed) + uint32_t(1);
  gate_.store((epoch & 0xffffffffu) << 32 | kOpen, std::memory_order_release);
  epoch_.add(1);
  take_tasks(0, 0);
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

void ThreadPool::work(int thread, size_t share) {
  FlushToZero flush;
  for (uint32_t seen = 0;;) {
    seen = epoch_.wait_while(seen);
    if (ending_.load(std::memory_order_relaxed)) return;
    if (!join(seen)) continue;  // over already, or another has begun
    take_tasks(thread, share);
    leave();
  }
}

const std::vector<int>& ThreadPool::caller_cpus() const {
  static const std::vector<int> any;
  return homes_.empty() ? any : homes_[0].node.cpus;
}

void ThreadPool::place(const uint8_t* data, size_t bytes) const {
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  const int32_t pages = int32_t((bytes + page - 1) / page);
  for (size_t i = 0; i < homes_.size(); i++) {
    const size_t begin = size_t(part(pages, i)) * page, end = std::min(bytes, size_t(part(pages, i + 1)) * page);
    if (int error = prefer_node(data + begin, end - begin, homes_[i].node.id)) memory_error_ = error;
  }
}

void ThreadPool::interleave(const uint8_t* data, size_t bytes) const {
  if (homes_.empty()) return;
  std::vector<int> nodes;
  for (const Home& home : homes_) nodes.push_back(home.node.id);
  if (int error = interleave_nodes(data, bytes, nodes)) memory_error_ = error;
}

std::string ThreadPool::placement() const {
  if (homes_.empty()) return "";
  std::string text = std::to_string(homes_.size()) + " NUMA nodes";
  for (const auto& [what, error] : {std::pair("threads", thread_error_.load()), std::pair("memory", memory_error_.load())})
    if (error) text += std::string(", ") + what + " not bound to them (" + std::strerror(error) + ")";
  return text;
}

}  // namespace interlingua
