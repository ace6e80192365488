// What `lockstep doctor` looks for besides what training on one machine needs. Every check is told where to look, so that
// tests can have it look elsewhere.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::apps {

struct Finding {
  std::string name;
  bool ok;
  std::string found;
  std::string mend{};     // what to do where it is not ok
  bool optional = false;  // only what `mend` names needs it
};

struct Surroundings {
  std::string path;                // folders of programs, as in PATH
  std::filesystem::path libraries; // the folder of liblockstep_runtime.so
  std::filesystem::path python;    // of the tests: .venv/bin/python
  bool built_with_mpi = false;
  bool built_with_cuda = false;
};

// Whether work that may crash, in a process of its own, went well, and what it said. Of a child that a signal ended, the signal.
using ChildAnswer = std::pair<bool, std::string>;
ChildAnswer in_child(const std::function<ChildAnswer()>& work);

// The file of that name in the folders of `path` that may be executed; empty where there is none.
std::filesystem::path find_on_path(const std::string& path, const std::string& program);

Finding mpi_plugin(const Surroundings& here);          // that it is there and loads
Finding nccl_plugin(const Surroundings& here);
Finding mpi_launcher(const Surroundings& here);        // mpirun
Finding compiler(const Surroundings& here);            // g++ 12 or later, and what builds with it
Finding python_packages(const Surroundings& here);     // those of scripts/requirements.txt, each in its version
Finding browser(const Surroundings& here);             // that opens the report of a step in a test
Finding network_namespaces(const Surroundings& here);  // two hosts in a test of MPI: ip, unshare and the right to make them

}  // namespace lockstep::apps
