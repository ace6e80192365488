// lockstep doctor: what this machine and this installation lack, each with the command that mends it.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/lockstep/doctor.h"
#include "apps/lockstep/runtime_call.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/base/json.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/fields.h"
#include "lockstep/launch/compute_threads.h"
#include "lockstep/program/passes/job.h"

namespace lockstep::apps {
namespace {

Finding cores() { return {.name = "cores", .ok = true, .found = cat(launch::compute_threads(0, {}), " usable")}; }

Finding cpu_features() {
  std::vector<std::string> has;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) has.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) has.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) has.emplace_back("avx512f");
  if (__builtin_cpu_supports("avx512bf16")) has.emplace_back("avx512bf16");
  return {.name = "instructions",
          .ok = __builtin_cpu_supports("avx2") != 0,
          .found = has.empty() ? "none of avx2, fma, avx512f, avx512bf16" : join(has, " "),
          .mend = "use a processor with AVX2: without it LibTorch is several times slower"};
}

// The value of `key` in a file of "key:  value kB" lines, in bytes; 0 where it is not there.
double kilobytes(const char* file, const std::string& key) {
  std::ifstream stream(file);
  std::string word;
  double value = 0;
  while (stream >> word) {
    if (word == key + ":" && stream >> value) return value * 1024;
  }
  return 0;
}

Finding memory() {
  const double available = kilobytes("/proc/meminfo", "MemAvailable");
  return {.name = "memory",
          .ok = available >= 2.0 * kGiB,
          .found = cat(format_bytes(available), " available of ", format_bytes(kilobytes("/proc/meminfo", "MemTotal"))),
          .mend = "free some: a small run and its build need 2 GiB"};
}

// Ranks of one machine share anonymous memory files.
Finding shared_memory() {
  const auto failed = [](const char* call) {
    return Finding{.name = "shared memory",
                   .ok = false,
                   .found = cat(call, ": ", std::strerror(errno)),
                   .mend = "allow memfd_create in this container (seccomp profile), or raise its memory limit"};
  };
  const int file = ::memfd_create("lockstep-doctor", MFD_CLOEXEC);
  if (file < 0) return failed("memfd_create");
  const bool sized = ::ftruncate(file, kMiB) == 0;
  void* view = sized ? ::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  ::close(file);
  if (view == MAP_FAILED) return failed("mapping shared memory");
  ::munmap(view, kMiB);
  return {.name = "shared memory", .ok = true, .found = "memfd works"};
}

// The path of the mapped file of that name, or "".
std::string mapped_file(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with("/" + name)) return line.substr(line.find('/'));
  }
  return "";
}

std::string version_of_torch(const std::filesystem::path& package) {
  std::ifstream stream(package / "version.py");
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with("__version__")) continue;
    const size_t begin = line.find('\'');
    return line.substr(begin + 1, line.rfind('\'') - begin - 1);
  }
  return "unknown";
}

std::vector<Finding> runtime() {
  const std::string file = find_runtime_library();
  Finding library{.name = "runtime library", .ok = !file.empty(), .found = "neither beside the program nor in ../lib",
                  .mend = "make build"};
  if (file.empty()) return {library};
  const auto [loads, text] = in_child([&]() -> ChildAnswer {
    void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle || !::dlsym(handle, kRuntimeVerb)) return {false, ::dlerror()};
    return {true, mapped_file("libtorch_cpu.so")};
  });
  library.ok = loads;
  library.found = loads ? file : text;
  library.mend = "scripts/setup.sh && make build";
  if (!loads) return {library};

  const std::filesystem::path package = std::filesystem::path(text).parent_path().parent_path();
  const std::string version = version_of_torch(package);
  const bool same = version == LOCKSTEP_TORCH_VERSION;
  return {library, Finding{.name = "LibTorch",
                           .ok = same,
                           .found = cat(version, " at ", package.string(), same ? "" : ", built with " LOCKSTEP_TORCH_VERSION),
                           .mend = "make build, with LOCKSTEP_TORCH set to the PyTorch that is meant"}};
}

// What building, the tests and other backends need.
std::vector<Finding> tools() {
  const char* path = std::getenv("PATH");
  const Surroundings here{.path = path ? path : "",
                          .libraries = std::filesystem::path(find_runtime_library()).parent_path(),
                          .python = LOCKSTEP_TEST_PYTHON,
                          .built_with_mpi = LOCKSTEP_WITH_MPI,
                          .built_with_cuda = LOCKSTEP_WITH_CUDA};
  return {mpi_plugin(here),      nccl_plugin(here), mpi_launcher(here),      compiler(here),
          python_packages(here), browser(here),     network_namespaces(here)};
}

Finding input_file(const std::string& key, const std::string& path, const std::string& mend) {
  std::error_code ignored;
  const bool there = std::filesystem::is_regular_file(path, ignored);
  return {.name = key, .ok = there, .found = cat(path, there ? "" : ": no such file"), .mend = mend};
}

// What a configuration needs: that it loads and fits, its files, its device.
std::vector<Finding> configuration(const CommandLine& command_line) {
  std::vector<Finding> findings;
  const auto files = command_line.config_files();
  const std::string file = files.empty() ? "--section.field=value" : files.front().string();
  const auto bad = [](const char* name, const Error& error) {
    return Finding{.name = name, .ok = false, .found = error.what(), .mend = "edit it; docs/config.md lists the keys"};
  };
  config::LoadedConfig loaded;
  try {
    loaded = load_config(command_line);
    findings.push_back({.name = "configuration", .ok = true, .found = file});
  } catch (const Error& error) {
    return {bad("configuration", error)};
  }
  try {
    if (command_line.ranks) program::check_sizes(loaded, *command_line.ranks);
  } catch (const Error& error) {
    findings.push_back(bad("layout", error));
  }
  const config::DataSection& data = loaded.config.data;
  for (const auto& [key, prefix] : {std::pair{"data.train", data.train}, {"data.validation", data.validation}}) {
    if (prefix.empty()) continue;
    for (const char* ending : {".bin", ".idx"}) {
      findings.push_back(input_file(key, prefix + ending, "lockstep data prepare FILE... --out " + prefix));
    }
  }
  if (!data.tokenizer.empty()) {
    findings.push_back(input_file("data.tokenizer", tokenizer_file(data.tokenizer).string(), "lockstep data tokenizer makes one"));
  }
  if (loaded.config.train.device == config::Device::kCuda) {
    const bool there = std::filesystem::exists("/dev/nvidiactl");
    findings.push_back({.name = "train.device",
                        .ok = there,
                        .found = there ? "cuda: a driver is there" : "cuda, and this machine has no NVIDIA driver",
                        .mend = "--train.device=cpu, or a machine with a GPU"});
  }
  return findings;
}

void print_text(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    const std::string found = join(split(finding.found, '\n'), "\n" + std::string(25, ' '));
    print(cat("  ", finding.ok ? "ok  " : finding.optional ? "none" : "MEND", "  ", pad_right(finding.name, 17), found, "\n"));
    if (!finding.ok) print(cat(pad_right("", 25), "-> ", finding.mend, "\n"));
  }
}

void print_json(const std::vector<Finding>& findings, bool ok) {
  OrderedJson checks = OrderedJson::array();
  for (const Finding& finding : findings) {
    OrderedJson check = {{"name", finding.name}, {"ok", finding.ok}, {"found", finding.found}};
    if (finding.optional) check["optional"] = true;
    if (!finding.ok) check["mend"] = finding.mend;
    checks.push_back(std::move(check));
  }
  print(OrderedJson({{"ok", ok}, {"version", LOCKSTEP_VERSION}, {"checks", checks}}).dump() + "\n");
}

}  // namespace

int verb_doctor(const CommandLine& command_line) {
  refuse_words(command_line);
  const bool configured = !command_line.config_files().empty() || !command_line.overrides.empty();
  if (command_line.ranks && !configured)
    reject("LS1004", cat("-n ", *command_line.ranks, " is of a configuration, and none was named"),
           "lockstep doctor run.toml -n N");
  std::vector<Finding> findings = {cores(), cpu_features(), memory(), shared_memory()};
  const auto add = [&](std::vector<Finding> more) { findings.insert(findings.end(), more.begin(), more.end()); };
  add(runtime());
  add(tools());
  if (configured) add(configuration(command_line));

  const bool ok = std::ranges::all_of(findings, [](const Finding& finding) { return finding.ok || finding.optional; });
  command_line.json ? print_json(findings, ok) : print_text(findings);
  return static_cast<int>(ok ? ExitCode::kOk : ExitCode::kEnvironment);
}

}  // namespace lockstep::apps
