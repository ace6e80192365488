#include "lockstep/plan/this_machine.h"

#include <algorithm>
#include <toml++/toml.h>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/stack_toml.h"

namespace lockstep::plan {
namespace {

// What one rank has.
struct Share {
  int ranks = 1;
  double cores = 1;   // while all compute
  double alone = 1;   // times as many while the others do not
  double memory = 1;  // of the bandwidth of the host
  double link = 1;    // of the same, of one core
};

Share share_of(const HostShare& host) {
  LOCKSTEP_CHECK(host.cores >= 1 && host.ranks.ranks >= 0 && host.ranks.threads >= 0 && host.saturating > 0);
  Share share{.ranks = host.ranks.ranks > 0 ? host.ranks.ranks : host.cores};
  const int threads = host.ranks.threads > 0 ? host.ranks.threads : std::max(1, host.cores / share.ranks);  // as launch/compute_threads.h
  const double equal = static_cast<double>(host.cores) / share.ranks, most = std::min(threads, host.cores);
  share.cores = std::min(most, equal);
  share.alone = most / share.cores;
  share.memory = std::min(1.0 / share.ranks, share.cores / host.saturating);
  share.link = std::min(1.0 / share.ranks, std::min(1.0, share.cores) / host.saturating);
  return share;
}

void name_device(DeviceKind& device, const Share& share, const std::string& processor) {
  device.name = cat(number_text(share.cores), share.cores == 1 ? " core of " : " cores of ", processor);
}

// "2 cores of X": X.
std::string processor_of(const DeviceKind& device) {
  const size_t of = device.name.find(" of ");
  return of == std::string::npos ? device.name : device.name.substr(of + 4);
}

class HostReader {
 public:
  HostReader(std::string_view text, std::string_view origin) : origin_(origin) {
    try {
      table_ = toml::parse(text, origin);
    } catch (const toml::parse_error& error) {
      refuse(cat("not TOML: ", error.description()));
    }
  }

  std::optional<HostShare> read(int devices) {
    const toml::table* host = table_["host"].as_table();
    if (!host) return std::nullopt;
    HostShare share{};
    for (const auto& [key, node] : *host) {
      const std::string name(key.str());
      if (name == "cores") share.cores = static_cast<int>(number(name, node, true));
      else if (name == "saturating") share.saturating = number(name, node, false);
      else if (name == "ranks") share.ranks.ranks = static_cast<int>(number(name, node, true));
      else if (name == "threads") share.ranks.threads = static_cast<int>(number(name, node, true));
      else refuse(cat("unknown key 'host.", name, "': cores, saturating, ranks and threads are known"));
    }
    if (share.cores < 1 || share.ranks.ranks != devices || !(share.saturating > 0))
      refuse(cat("[host] has ", share.cores, " cores and ", share.ranks.ranks, " ranks, the file ", devices, " devices"));
    return share;
  }

 private:
  double number(const std::string& name, const toml::node& node, bool whole) const {
    constexpr double kMost = 1 << 20;
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !(*value >= 0 && *value <= kMost) || (whole && !node.is_integer())) refuse(cat("host.", name, " is no number of 0 or more"));
    return *value;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError({.code = "LS1153", .what = what, .where = std::string(origin_), .way_out = "`lockstep plan --cluster here --machine FILE` writes one"});
  }

  std::string_view origin_;
  toml::table table_{};
};

}  // namespace

HostShare host_share(const HostFacts& facts, const HostSpeed& speed, const MachineRanks& ranks) {
  const double of_all = speed.memory_of_core > 0 ? speed.memory / speed.memory_of_core : facts.cores;
  return {.cores = facts.cores, .saturating = std::clamp(of_all, 1.0, static_cast<double>(facts.cores)), .ranks = ranks};
}

Cluster this_machine(const HostFacts& facts, const HostSpeed& speed, const MachineRanks& ranks) {
  const Share share = share_of(host_share(facts, speed, ranks));
  const double flops = speed.flops * share.cores, link = speed.memory * share.link;
  Cluster cluster{.name = "this machine",
                  .device = {.generation = Generation::kCpu,
                             .memory = facts.memory / share.ranks,
                             .memory_bandwidth = speed.memory * share.memory,
                             .flops_fp32 = flops,
                             .flops_bf16 = flops,
                             .link = link,
                             .link_to_one = link,
                             .link_efficiency = 1,
                             .link_latency = speed.latency,
                             .pcie = link,
                             .alone = share.alone,
                             .origin = "measured on this machine"},
                  .nodes = 1,
                  .devices_per_node = share.ranks,
                  .domain = share.ranks,
                  .nics_per_node = 1,
                  .host_memory = facts.memory,
                  .origin = "measured on this machine"};
  name_device(cluster.device, share, facts.processor);
  return cluster;
}

HostMachine measured_machine(const MachineRanks& ranks) {
  const HostFacts facts = host_facts();
  const HostSpeed speed = measure_host(facts.cores);
  HostMachine measured{.machine = {.cluster = this_machine(facts, speed, ranks)}, .host = host_share(facts, speed, ranks)};
  measured.host->ranks.ranks = measured.machine.cluster.devices_per_node;
  measured.machine.stack = stack_of(measured.machine.cluster.device, usual_kernels(measured.machine.cluster.device));
  return measured;
}

HostMachine with_ranks(HostMachine of, const MachineRanks& ranks) {
  if (!of.host) return of;
  const Share was = share_of(*of.host);
  of.host->ranks = ranks;
  const Share is = share_of(*of.host);
  of.host->ranks.ranks = is.ranks;
  Cluster& cluster = of.machine.cluster;
  DeviceKind& device = cluster.device;
  LOCKSTEP_CHECK(cluster.nodes == 1 && cluster.devices_per_node == was.ranks, "a machine of ", cluster.devices_per_node, " ranks");
  for (double* rate : {&device.flops_fp32, &device.flops_bf16, &device.flops_fp8}) *rate *= is.cores / was.cores;
  for (double* copies : {&device.link, &device.link_to_one, &device.pcie}) *copies *= is.link / was.link;
  device.memory *= static_cast<double>(was.ranks) / is.ranks;
  device.memory_bandwidth *= is.memory / was.memory;
  device.alone = is.alone;
  name_device(device, is, processor_of(device));
  cluster.devices_per_node = cluster.domain = is.ranks;
  return of;
}

std::string machine_toml(const HostMachine& of) {
  std::string text = cat(cluster_toml(of.machine.cluster), "\n", stack_toml(of.machine.stack));
  if (of.host)
    text += cat("\n[host]\ncores = ", of.host->cores, "\nsaturating = ", number_text(of.host->saturating), "\nranks = ", of.host->ranks.ranks,
                "\nthreads = ", of.host->ranks.threads, "\n");
  return text;
}

HostMachine parse_machine_toml(std::string_view text, std::string_view origin) {
  HostMachine read{.machine = {.cluster = parse_cluster_toml(without_machine_tables(text), origin)}};
  Cluster& cluster = read.machine.cluster;
  read.machine.stack = stack_of(cluster.device, usual_kernels(cluster.device));
  if (has_stack(text)) read.machine.stack = parse_stack_toml(text, origin, read.machine.stack);
  read.host = HostReader(text, origin).read(cluster.devices());
  if (read.host) cluster.device.alone = share_of(*read.host).alone;
  return read;
}

}  // namespace lockstep::plan
