#include <cctype>

#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/script.h"

namespace lockstep::launch {
namespace {

constexpr int kPort = 29500;

// A name as DNS allows it.
std::string dns_name(const std::string& name) {
  std::string plain;
  for (const char c : name.substr(0, 50)) {
    const auto letter = static_cast<unsigned char>(c);
    plain += std::isalnum(letter) != 0 && letter < 128 ? static_cast<char>(std::tolower(letter)) : '-';
  }
  while (!plain.empty() && plain.back() == '-') plain.pop_back();
  const bool good_start = !plain.empty() && std::isalpha(static_cast<unsigned char>(plain.front())) != 0;
  return good_start ? plain : cat("run-", plain.empty() ? "0" : plain);
}

// clang-format off: the text keeps its lines

// A string as YAML reads it back: JSON's form is part of YAML.
std::string yaml_text(const std::string& text) { return Json(text).dump(-1, ' ', true); }

// Kubernetes replaces $(NAME) in a command; $$ is one $.
std::string command_word(const std::string& word) {
  std::string escaped;
  for (const char c : word) escaped += c == '$' ? std::string("$$") : std::string(1, c);
  return yaml_text(escaped);
}

std::string command_list(const ScriptJob& job) {
  std::vector<std::string> words = {command_word(job.program)};
  for (const std::string& argument : job.arguments) words.push_back(command_word(argument));
  words.push_back(yaml_text("-n"));
  words.push_back(yaml_text(cat(job.ranks / job.nodes)));
  return cat("[", join(words, ", "), "]");
}

// Pods learn their number from an annotation and where pod 0 is from the service; each starts its own ranks.
std::string environment_of(const ScriptJob& job, const std::string& name) {
  if (job.nodes == 1) return "";
  return cat(
      "          env:\n"
      "            - name: RANK\n"
      "              valueFrom:\n"
      "                fieldRef: {fieldPath: \"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}\n"
      "            - {name: WORLD_SIZE, value: \"", job.nodes, "\"}\n",
      "            - {name: MASTER_ADDR, value: ", yaml_text(cat(name, "-0.", name)), "}\n",
      "            - {name: MASTER_PORT, value: \"", kPort, "\"}\n",
      "            - name: LOCKSTEP_JOB_TOKEN\n"
      "              valueFrom: {secretKeyRef: {name: ", yaml_text(name + "-token"), ", key: token}}\n");
}

std::string resources_of(const ScriptJob& job) {
  const int per_node = job.ranks / job.nodes;
  std::string text;
  if (job.threads > 0) text += cat("            requests: {cpu: ", yaml_text(cat(job.threads * per_node)), "}\n");
  if (job.gpus) text += cat("            limits: {nvidia.com/gpu: ", per_node, "}\n");
  return text.empty() ? text : "          resources:\n" + text;
}

std::string companions(const ScriptJob& job, const std::string& name) {
  if (job.nodes == 1) return "";
  return cat(
      "apiVersion: v1\n"
      "kind: Secret\n"
      "metadata: {name: ", yaml_text(name + "-token"), "}\n",
      "stringData: {token: ", yaml_text(job.token), "}\n",
      "---\n"
      "apiVersion: v1\n"
      "kind: Service\n"
      "metadata: {name: ", yaml_text(name), "}\n",
      "spec:\n"
      "  clusterIP: None\n"
      "  publishNotReadyAddresses: true\n"
      "  selector: {batch.kubernetes.io/job-name: ", yaml_text(name), "}\n",
      "---\n");
}

}  // namespace

std::string kubernetes_manifest(const ScriptJob& job) {
  const std::string name = dns_name(job.name);
  return cat(
      "# Written by lockstep launch --print k8s; kubectl apply -f FILE starts it.\n",
      companions(job, name),
      "apiVersion: batch/v1\n"
      "kind: Job\n"
      "metadata: {name: ", yaml_text(name), "}\n",
      "spec:\n"
      "  completionMode: Indexed\n"
      "  completions: ", job.nodes, "\n",
      "  parallelism: ", job.nodes, "\n",
      "  backoffLimit: ", 3 * job.nodes, "  # lost ranks (code 6) and lost nodes are tried again\n",
      "  podFailurePolicy:\n"
      "    rules:\n"
      "      - action: Ignore  # saved, to be started again: does not count\n"
      "        onExitCodes: {containerName: lockstep, operator: In, values: [75]}\n"
      "      - action: Ignore  # the node went away\n"
      "        onPodConditions: [{type: DisruptionTarget}]\n"
      "      - action: FailJob  # trying again would not help\n"
      "        onExitCodes: {containerName: lockstep, operator: NotIn, values: [6, 75, 137, 143]}\n"
      "  template:\n"
      "    spec:\n"
      "      restartPolicy: Never\n"
      "      terminationGracePeriodSeconds: 600  # SIGTERM comes first: time to save\n",
      job.nodes > 1 ? cat("      subdomain: ", yaml_text(name), "\n") : "",
      "      containers:\n"
      "        - name: lockstep\n"
      "          image: ", yaml_text(job.image), "\n",
      "          workingDir: /work\n"
      "          command: ", command_list(job), "\n",
      environment_of(job, name), resources_of(job),
      "          volumeMounts: [{name: work, mountPath: /work}]\n"
      "      volumes:\n"
      "        - name: work\n"
      "          persistentVolumeClaim: {claimName: ", yaml_text(job.claim), "}\n");
}

}  // namespace lockstep::launch
