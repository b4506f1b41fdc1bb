// NUMA: which CPUs are near which memory. Straight from sysfs and system calls. Everything here is a wish: a call that
// fails (containers forbid mbind) costs speed alone, so functions return an errno to report and throw nothing.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace interlingua {

struct NumaNode {
  int id;
  std::vector<int> cpus;
};

constexpr const char* kNumaRoot = "/sys/devices/system/node";

// CPUs that the calling thread may run on, ascending.
std::vector<int> allowed_cpus();

// Nodes that have some of `cpus` (ascending), in order of their ids, with these CPUs alone. None if the files under
// `root` do not give each of `cpus` to one node: half a topology would leave the others idle.
std::vector<NumaNode> numa_nodes(const std::vector<int>& cpus, const std::string& root = kNumaRoot);

// Keeps a thread on `cpus`. Returns 0 or an errno.
int bind_thread(pthread_t thread, const std::vector<int>& cpus);

// Keeps the calling thread on `cpus` while it lives, if these are any.
class BoundCaller {
 public:
  explicit BoundCaller(const std::vector<int>& cpus);
  ~BoundCaller();
  BoundCaller(const BoundCaller&) = delete;
  BoundCaller& operator=(const BoundCaller&) = delete;

 private:
  std::vector<int> saved_;
};

// Pages of mapped memory that were not written yet come from `node` while it has room, or from all `nodes` in turn.
// `data` begins a page. Returns 0 or an errno.
int prefer_node(const uint8_t* data, size_t bytes, int node);
int interleave_nodes(const uint8_t* data, size_t bytes, const std::vector<int>& nodes);

}  // namespace interlingua
