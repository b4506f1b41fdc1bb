#include "numa.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace interlingua {
namespace {

constexpr int kMaxCpus = 8192, kMaxNodes = 1024;  // what Linux can be built for
constexpr int kWordBits = 8 * int(sizeof(unsigned long));

// A set of small numbers as the kernel takes it.
template <int kSize>
struct Bits {
  unsigned long words[kSize / kWordBits] = {};
  bool has(int i) const { return words[i / kWordBits] >> i % kWordBits & 1; }
  bool add(int i) {
    if (i < 0 || i >= kSize) return false;
    words[i / kWordBits] |= 1ul << i % kWordBits;
    return true;
  }
  cpu_set_t* cpus() { return reinterpret_cast<cpu_set_t*>(words); }
};

// Those of `cpus` that a list such as "0-3,8" names.
std::vector<int> listed(std::istream& list, const std::vector<int>& cpus) {
  std::vector<int> found;
  for (int first; list >> first; list.ignore(1)) {
    int last = first;
    if (list.peek() == '-') {
      list.ignore(1);
      list >> last;
    }
    std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(found), [&](int cpu) { return cpu >= first && cpu <= last; });
  }
  return found;
}

int bind_memory(const uint8_t* data, size_t bytes, int policy, const std::vector<int>& nodes) {
  Bits<kMaxNodes> mask;
  for (int node : nodes)
    if (!mask.add(node)) return EINVAL;
  // The kernel reads one bit less than it is told.
  return bytes && syscall(SYS_mbind, data, bytes, policy, mask.words, kMaxNodes + 1, 0) ? errno : 0;
}

}  // namespace

std::vector<int> allowed_cpus() {
  Bits<kMaxCpus> mask;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(mask), mask.cpus())) return cpus;
  for (int cpu = 0; cpu < kMaxCpus; cpu++)
    if (mask.has(cpu)) cpus.push_back(cpu);
  return cpus;
}

std::vector<NumaNode> numa_nodes(const std::vector<int>& cpus, const std::string& root) {
  std::vector<NumaNode> nodes;
  size_t found = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    int id = -1, length = 0;
    if (std::sscanf(name.c_str(), "node%d%n", &id, &length) != 1 || id < 0 || size_t(length) != name.size()) continue;
    std::ifstream list(entry->path() / "cpulist");
    NumaNode node{id, listed(list, cpus)};
    found += node.cpus.size();
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  if (found != cpus.size()) return {};
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return nodes;
}

int bind_thread(pthread_t thread, const std::vector<int>& cpus) {
  Bits<kMaxCpus> mask;
  for (int cpu : cpus)
    if (!mask.add(cpu)) return EINVAL;
  return pthread_setaffinity_np(thread, sizeof(mask), mask.cpus());
}

BoundCaller::BoundCaller(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  saved_ = allowed_cpus();
  bind_thread(pthread_self(), cpus);
}

BoundCaller::~BoundCaller() {
  if (!saved_.empty()) bind_thread(pthread_self(), saved_);
}

// Preferred, not bound: a node that is full would have the process killed.
int prefer_node(const uint8_t* data, size_t bytes, int node) { return bind_memory(data, bytes, MPOL_PREFERRED, {node}); }

int interleave_nodes(const uint8_t* data, size_t bytes, const std::vector<int>& nodes) {
  return bind_memory(data, bytes, MPOL_INTERLEAVE, nodes);
}

}  // namespace interlingua
