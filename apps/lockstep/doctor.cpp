#include "apps/lockstep/doctor.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "apps/lockstep/python_requirements.h"
#include "lockstep/base/text.h"

namespace lockstep::apps {
namespace {

constexpr int kGccMajor = 12;
constexpr const char* kVersionsScript = R"(
import importlib.metadata as metadata, sys
for line in sys.argv[1:]:
    name, _, wanted = line.partition("==")
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = "missing"
    if found.partition("+")[0] != wanted:
        print(name, found if found == "missing" else f"{found} instead of {wanted}")
)";

// `act` gets the end of a pipe that what it writes into becomes the answer; it does not return.
ChildAnswer answer_of(const std::function<void(int out)>& act) {
  int ends[2];
  if (::pipe(ends) != 0) return {false, cat("pipe: ", std::strerror(errno))};
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return {false, cat("fork: ", std::strerror(errno))};
  if (child == 0) {
    act(ends[1]);
    ::_exit(1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(count));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return {false, cat("crashed with ", ::strsignal(WTERMSIG(status)))};
  return {WIFEXITED(status) && WEXITSTATUS(status) == 0, text};
}

// The program at the path words[0]; what it writes, standard error too. Well is exit code 0.
ChildAnswer run_program(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  return answer_of([&](int out) {
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    const std::string problem = cat(words[0], ": ", std::strerror(errno));
    if (::write(out, problem.data(), problem.size()) < 0) ::_exit(1);
  });
}

Finding plugin(const Surroundings& here, const std::string& backend, bool built, const std::string& how_to_build) {
  const std::filesystem::path file = here.libraries / cat("liblockstep_", backend, ".so");
  Finding finding{.name = cat(backend, " plugin"), .ok = false, .found = cat("no ", file.string()), .optional = true};
  if (!std::filesystem::exists(file)) {
    if (!built) finding.found = "not part of this build";
    finding.mend = built ? cat("make build makes it; ranks over ", backend, " need it") : how_to_build;
    return finding;
  }
  std::tie(finding.ok, finding.found) = in_child([&]() -> ChildAnswer {
    void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    return {handle != nullptr, handle ? file.string() : ::dlerror()};
  });
  finding.mend = "install the library that is named, or build with the one that is there: make build";
  return finding;
}

// Whether all of them are on the path; else `finding` names those that are not.
bool all_there(const Surroundings& here, const std::vector<std::string>& names, Finding& finding) {
  std::vector<std::string> missing;
  for (const std::string& name : names)
    if (find_on_path(here.path, name).empty()) missing.push_back(name);
  if (!missing.empty()) finding.found = cat("not on the PATH: ", join(missing, ", "));
  return missing.empty();
}

}  // namespace

ChildAnswer in_child(const std::function<ChildAnswer()>& work) {
  return answer_of([&](int out) {
    const auto [ok, text] = work();
    const bool written = ::write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(ok && written ? 0 : 1);
  });
}

std::filesystem::path find_on_path(const std::string& path, const std::string& program) {
  for (const std::string& folder : split(path, ':')) {
    const std::filesystem::path file = std::filesystem::path(folder.empty() ? "." : folder) / program;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(file, ignored) && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

Finding mpi_plugin(const Surroundings& here) {
  return plugin(here, "mpi", here.built_with_mpi,
                "apt install libopenmpi-dev openmpi-bin && cmake --preset release && make build; CPUs on several hosts need it");
}

Finding nccl_plugin(const Surroundings& here) {
  return plugin(here, "nccl", here.built_with_cuda, "build the preset cuda (docs/gpu.md); GPUs need it");
}

Finding mpi_launcher(const Surroundings& here) {
  const std::filesystem::path file = find_on_path(here.path, "mpirun");
  return {.name = "mpirun", .ok = !file.empty(), .found = file.empty() ? "not on the PATH" : file.string(),
          .mend = "apt install openmpi-bin; CPUs on several hosts need it", .optional = true};
}

Finding compiler(const Surroundings& here) {
  Finding finding{.name = "compiler", .ok = false, .found = "", .mend = "scripts/setup.sh; building Lockstep needs it",
                  .optional = true};
  if (!all_there(here, {"g++", "cmake", "ninja"}, finding)) return finding;
  const std::string file = find_on_path(here.path, "g++").string();
  const auto [ok, text] = run_program({file, "-dumpfullversion"});
  const std::string version = text.substr(0, text.find('\n'));
  finding.ok = ok && std::atoi(version.c_str()) >= kGccMajor;
  finding.found = cat(file, " ", version, finding.ok || !ok ? "" : cat(", older than ", kGccMajor));
  return finding;
}

Finding python_packages(const Surroundings& here) {
  Finding finding{.name = "Python packages", .ok = false, .found = cat("no ", here.python.string()),
                  .mend = "scripts/setup.sh; the tests compare with them", .optional = true};
  if (::access(here.python.c_str(), X_OK) != 0) return finding;
  std::vector<std::string> words = {here.python.string(), "-c", kVersionsScript};
  for (const std::string& line : split(kPythonRequirements, '\n'))
    if (!line.empty()) words.push_back(line);
  auto [ok, text] = run_program(words);
  while (text.ends_with('\n')) text.pop_back();
  finding.ok = ok && text.empty();
  finding.found = finding.ok ? cat(words.size() - 3, " in ", here.python.string()) : join(split(text, '\n'), ", ");
  return finding;
}

Finding browser(const Surroundings& here) {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
    if (const auto file = find_on_path(here.path, name); !file.empty())
      return {.name = "browser", .ok = true, .found = file.string(), .optional = true};
  return {.name = "browser", .ok = false, .found = "neither chromium, chromium-browser nor google-chrome is on the PATH",
          .mend = "apt install chromium; a test opens the report of a step in it", .optional = true};
}

Finding network_namespaces(const Surroundings& here) {
  Finding finding{.name = "two hosts", .ok = false, .found = "",
                  .mend = "scripts/setup.sh, and root; a test of mpi makes two hosts of network namespaces", .optional = true};
  if (!all_there(here, {"ip", "unshare"}, finding)) return finding;
  std::tie(finding.ok, finding.found) = in_child([]() -> ChildAnswer {
    return ::unshare(CLONE_NEWNET) == 0 ? ChildAnswer{true, "network namespaces can be made"}
                                        : ChildAnswer{false, cat("unshare: ", std::strerror(errno))};
  });
  return finding;
}

}  // namespace lockstep::apps
