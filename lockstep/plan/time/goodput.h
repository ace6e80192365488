// What failures, saving and slow nodes take of a run, and what the rest costs. All closed forms, in seconds, bytes and money.
#pragma once

#include <limits>
#include <string>

#include "lockstep/plan/time/step_estimate.h"

namespace lockstep::plan {

// Seconds of training between two saves that lose least. `save`: seconds that training stands for one; `between_failures`: the mean of the job.
double young_interval(double save, double between_failures);  // sqrt(2 save M) (Young 1974)
double daly_interval(double save, double between_failures);   // the next orders of it; M from save = 2 M on (Daly 2006, eq. 37)

// Bytes of a checkpoint: fp32 values and the slots of the optimizer, each once however many ranks hold them.
double checkpoint_bytes(const program::Layout& layout);

struct SaveSeconds {
  double blocked = 0;   // training stands: device to host, and where the save is not asynchronous to disk
  double complete = 0;  // from its beginning until it is on disk: what fails before needs the one before
  double read = 0;      // of a restart
};
struct SaveOptions {
  int ranks = 0;             // that share the work; 0: all devices of the cluster
  bool asynchronous = true;  // written beside the next steps (config::CheckpointSection)
};
// Every rank copies an equal part to its host, every node writes its own to disk. ConfigError LS1157 where the cluster says no disk_bandwidth, or
// no bandwidth between device and host.
SaveSeconds save_seconds(const Cluster& cluster, double bytes, const SaveOptions& options = {});

struct FailureOptions {
  int nodes = 0;         // of the job; 0: all of the cluster
  double interval = 0;   // seconds between saves; 0: Daly's, but no more often than disk_share allows
  double disk_share = 0.1;  // of the time in which writing beside training may keep disks busy: others use them too
  double restart = 600;  // seconds from a failure until the job reads its checkpoint: noticing, replacing the node, starting. A user's own replaces it
};
// Shares of the time; `useful` and what is lost add up to 1.
struct Goodput {
  double between_failures = std::numeric_limits<double>::infinity();  // seconds; infinity: none are counted
  double interval = 0;  // seconds of training between saves; 0: nothing is saved
  SaveSeconds save{};
  double restart = 0;   // seconds of a failure, work done again not counted
  double useful = 1;
  double saving = 0;       // training stands for saves
  double restarting = 0;
  double repeating = 0;    // work done again since the last complete save
};
// Failures come by chance at one rate, at any time (Daly 2006): a stretch of training and its save take
// M exp(R / M) (exp((interval + save) / M) - 1). An asynchronous save that is not complete when the job fails is lost: its seconds count as R.
Goodput goodput_of(const Cluster& cluster, const SaveSeconds& save, const FailureOptions& options = {});
// "some node fails every 3h05m; a checkpoint every 5m10s (training stands for 1.2 s, on disk after 4.0 s); 91.9 % of the time is training, ...".
std::string goodput_text(const Goodput& goodput);

// A step in which every rank waits for the slowest: what computes takes longer by the slowest node, what goes over NICs by the slowest NICs.
struct Straggling {
  double seconds = 0;  // of the step then
  double waits = 0;    // share of it in which all other nodes wait
  int node = -1;       // whose devices are slowest; -1: none is slow
  int nics = -1;       // whose NICs
};
// Of a step of a healthy cluster; a closed form beside estimate_step with Cluster::slow. A pipeline's bubble grows with its slowest stage; of
// what axes wait for, as much goes over NICs as of their bytes (StepEstimate::traffic; without it pipeline and data parallel).
Straggling straggling(const StepEstimate& healthy, const Slowness& slow);

// Money of the whole cluster: idle devices are paid for too.
struct Money {
  double step = 0, token = 0, run = 0;
  double steps = 0, hours = 0;  // of the run
};
struct MoneyOptions {
  double tokens = 0;      // of the run; 0: of one step
  double useful = 1;      // Goodput::useful
  int devices = 0;        // that are paid for; 0: all of the cluster
};
// Of so many seconds of so many devices; 0 where the cluster says no price.
double step_money(const Cluster& cluster, int devices, double seconds);
// 0 where the cluster says no price; steps and hours are told all the same. A step and a token are without failures, the run with them.
Money money_of(const Cluster& cluster, const StepEstimate& estimate, const MoneyOptions& options = {});

}  // namespace lockstep::plan
