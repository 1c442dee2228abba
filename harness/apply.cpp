// SPDX-License-Identifier: MIT
// attnbench apply: one backend, once, on tensors of the user's own.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>

#include "harness/buffers.hpp"
#include "harness/command.hpp"
#include "harness/csv.hpp"
#include "harness/device.hpp"
#include "harness/layer.hpp"
#include "harness/machine.hpp"
#include "harness/npy.hpp"
#include "harness/plan.hpp"
#include "harness/ranges.hpp"
#include "harness/sweep.hpp"
#include "harness/work.hpp"

namespace attn {
namespace {

struct Request {
  std::string backend, q, k, v, out, weights, threads;
  std::optional<double> scale;
  bool causal = false;
};

void note(const std::string& sentence) { warn("note: " + sentence); }

Request parse_apply(const Words& args) {
  Request request;
  CLI::App app{
      "Computes out = softmax(scale * q k^T + mask) v with one backend, once, on your own "
      "tensors.\n"
      "NumPy files of float16, float32 or float64: [tokens, dim], [heads, tokens, dim] or\n"
      "[batch, heads, tokens, dim], all three of one rank. k and v may have fewer heads than q "
      "(GQA,\n"
      "MQA); v may have another dim. A query that sees no key gives zeros; NaN goes in and out.",
      "attnbench apply"};
  app.footer(
      "Example, with q.npy [4, 128, 64] and k.npy, v.npy [2, 512, 64]:\n\n"
      "  attnbench apply blas.gqa --q q.npy --k k.npy --v v.npy --causal --out z.npy\n\n"
      "writes z.npy [4, 128, 64]: query i sees the keys up to i + 384, because the corner of the "
      "causal\n"
      "mask lies bottom-right. `attnbench list` names the backends. One call is no measurement: no "
      "time\n"
      "is printed, `attnbench run` measures.\n\n"
      "Exit codes: 0 good, 2 usage or tensors that do not fit, 4 the backend refuses, 6 file "
      "trouble.");
  app.add_option("backend", request.backend,
                 "which implementation: cpu.naive, blas.three_step, ...")
      ->required()
      ->type_name("BACKEND");
  const auto file = [&](const char* name, std::string& target, const char* help) {
    return app.add_option(name, target, help)->type_name("FILE");
  };
  file("--q", request.q, "queries [..., n_q, head_dim]")->required();
  file("--k", request.k, "keys [..., n_kv, head_dim]")->required();
  file("--v", request.v, "values [..., n_kv, head_dim_v]")->required();
  file("--out", request.out, "the result [..., n_q, head_dim_v], float32, replaced whole")
      ->required();
  file("--weights", request.weights, "also the rows of softmax [..., n_q, n_kv]");
  app.add_flag("--causal", request.causal, "query i sees key j when j <= i + n_kv - n_q");
  app.add_option_function<std::string>(
         "--scale", [&](const std::string& text) { request.scale = parse_scale(text); },
         "factor of the scores (1/sqrt(head_dim)); any finite number, 0 included")
      ->type_name("NUMBER");
  app.add_option("--threads", request.threads,
                 "a number, or all: the usable cores (all, where the backend is threaded)")
      ->type_name("NUMBER");
  parse(app, args);
  return request;
}

// ---- files ---------------------------------------------------------------------------------------

// The file that `path` means once links are followed: replacing a link would not change its target.
std::string target_of(const std::string& path) {
  std::error_code error;
  const auto target =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return error ? path : target.string();
}

// Devices and pipes cannot be replaced, only written into, and neither can what stdout writes into.
bool is_standard_output(const std::string& path) {
  struct stat named {
  }, standard{};
  return stat(path.c_str(), &named) == 0 && fstat(STDOUT_FILENO, &standard) == 0 &&
         named.st_dev == standard.st_dev && named.st_ino == standard.st_ino;
}

bool is_replaced(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  return (kind == std::filesystem::file_type::regular ||
          kind == std::filesystem::file_type::not_found) &&
         !is_standard_output(path);
}

// Before the work: what is there must be writable, and so must the folder of what is replaced.
void expect_writable(const std::string& path) {
  const auto fail = [&](int error) {
    file_error(fmt::format("cannot write {}: {}", path, std::strerror(error)));
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) fail(EISDIR);
  if (std::filesystem::exists(status) && faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) {
    fail(errno);
  }
  if (!is_replaced(path)) return;
  const std::string folder = std::filesystem::path(target_of(path)).parent_path().string();
  if (faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) fail(errno);
}

void write_array(const std::string& path, const Npy& array) {
  const std::string bytes = npy_bytes(array.shape, array.values);
  if (is_replaced(path)) {
    replace_file(target_of(path), bytes);
  } else {
    overwrite_file(path, bytes);
  }
}

Npy read_array(const std::string& option, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    file_error(fmt::format("{}: cannot read {}: {}", option, path, std::strerror(EISDIR)));
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  const std::int64_t limit = default_mem_limit();
  if (!error && bytes > static_cast<std::uintmax_t>(limit) / 2) {
    throw CommandError(
        Exit::nothing_measured,
        fmt::format("{}: {} has {} bytes, reading it takes twice as many, and {:.0f} % of "
                    "the available memory is {}",
                    option, path, bytes, 100 * default_memory_share, limit));
  }
  return parse_npy(read_file(path), fmt::format("{} {}", option, path));
}

// ---- the problem ---------------------------------------------------------------------------------

// A tensor as [batch, heads, tokens, dim], whatever its rank.
struct Tensor {
  Npy array;
  std::int64_t batch = 1, heads = 1, tokens = 0, dim = 0;

  explicit Tensor(Npy from) : array(std::move(from)) {
    const std::vector<std::int64_t>& shape = array.shape;
    const std::size_t rank = shape.size();
    dim = shape[rank - 1];
    tokens = shape[rank - 2];
    if (rank > 2) heads = shape[rank - 3];
    if (rank > 3) batch = shape[0];
  }

  // Empty tensors have an address too, because null means that a tensor is not there.
  [[nodiscard]] ConstView view() const {
    static const float nothing = 0;
    const float* const data = array.values.empty() ? &nothing : array.values.data();
    return {data, heads * tokens * dim, tokens * dim, dim};
  }
};

// A tensor of the same rank as q, poisoned: what a backend does not write shows as NaN.
Tensor output_like(const Tensor& q, std::int64_t dim) {
  Npy array{q.array.shape, {}, {}};
  array.shape.back() = dim;
  array.values.assign(static_cast<std::size_t>(q.batch * q.heads * q.tokens * dim),
                      std::numeric_limits<float>::quiet_NaN());
  return Tensor(std::move(array));
}

View writable(Tensor& tensor) {
  const ConstView view = tensor.view();
  return {tensor.array.values.data(), view.batch_stride, view.head_stride, view.token_stride};
}

void expect_equal(std::string_view what, std::string_view a, std::int64_t of_a, std::string_view b,
                  std::int64_t of_b) {
  if (of_a == of_b) return;
  usage_error(
      fmt::format("{} has {} {} and {} has {}: they must be equal", a, of_a, what, b, of_b));
}

Problem problem_of(const Tensor& q, const Tensor& k, const Tensor& v, const Request& request) {
  expect_equal("axes", "q", q.array.shape.size(), "k", k.array.shape.size());
  expect_equal("axes", "q", q.array.shape.size(), "v", v.array.shape.size());
  for (const auto& [name, tensor] : {std::pair{'q', &q}, std::pair{'k', &k}, std::pair{'v', &v}}) {
    for (const std::int64_t axis : tensor->array.shape) {
      if (axis > std::numeric_limits<std::int32_t>::max()) {
        usage_error(fmt::format("{} has an axis of {}; they must be less than 2^31", name, axis));
      }
    }
    if (tensor->heads == 0) usage_error(fmt::format("{} has 0 heads; there must be one", name));
  }
  expect_equal("batch items", "q", q.batch, "k", k.batch);
  expect_equal("batch items", "k", k.batch, "v", v.batch);
  expect_equal("heads", "k", k.heads, "v", v.heads);
  expect_equal("tokens", "k", k.tokens, "v", v.tokens);
  if (q.heads % k.heads != 0) {
    usage_error(fmt::format(
        "q has {} heads and k has {}: the heads of q must be a multiple of those of k and v",
        q.heads, k.heads));
  }
  expect_equal("elements a head (head_dim)", "q", q.dim, "k", k.dim);
  if (q.dim == 0) usage_error("q and k have head_dim 0; there must be one element");
  Problem p;
  p.batch = q.batch;
  p.heads = q.heads;
  p.heads_kv = k.heads;
  p.n_q = q.tokens;
  p.n_kv = k.tokens;
  p.head_dim = q.dim;
  p.head_dim_v = v.dim;
  p.mask = request.causal ? Mask::causal : Mask::none;
  p.scale = request.scale;
  // Only empty tensors can be so large in their other axes: what a backend declares must not overflow.
  double most = 1;
  for (const std::int64_t factor : {p.batch, p.heads, p.n_q, p.n_kv, p.head_dim + p.head_dim_v}) {
    most *= static_cast<double>(std::max<std::int64_t>(factor, 1));
  }
  if (most > 0x1p55) {
    usage_error(fmt::format("q {} with k {} and v {} is more work than 64 bits can count",
                            shape_text(q.array.shape), shape_text(k.array.shape),
                            shape_text(v.array.shape)));
  }
  return p;
}

// What "all" means is what it means for `run`.
int threads_of(const Request& request, const Backend& backend) {
  const Machine machine = read_machine();
  const int most = machine.most_threads();
  const bool all = request.threads.empty() || request.threads == "all";
  int count = std::min(machine.default_threads(), most);
  if (!all) {
    const auto values = parse_range("--threads", request.threads, 1);
    if (values.size() != 1) {
      usage_error(fmt::format(
          "--threads: \"{}\" is a list; apply makes one call, so use one number", request.threads));
    }
    count = static_cast<int>(std::min<std::int64_t>(values[0], most));
    if (values[0] > most && backend.threaded) {
      note(fmt::format("--threads {} asks for more than the {} usable cores; it runs on {}",
                       request.threads, most, most));
    }
  }
  if (backend.threaded) return count;
  if (!request.threads.empty() && (count > 1 || request.threads != "1")) {
    note(fmt::format("{} is not threaded; it runs on one thread", backend.name));
  }
  return 1;
}

// ---- the call ------------------------------------------------------------------------------------

void refuse(const std::string& sentence) { throw CommandError(Exit::nothing_measured, sentence); }

void expect_runnable(const Entry& entry, const Request& request) {
  if (!entry.built()) refuse(fmt::format("{} is not built: {}", entry.name, entry.missing));
  if (request.weights.empty() || entry.backend.offers_probabilities) return;
  std::vector<std::string_view> others;
  for (const Entry& other : registry()) {
    if (other.built() && other.backend.offers_probabilities) others.push_back(other.name);
  }
  refuse(fmt::format("--weights: {} keeps no probabilities; {} would", entry.name,
                     fmt::join(others, ", ")));
}

// What a call takes of this machine's memory beside its inputs. Outputs count twice, for they are
// written from a copy in the format of the file.
std::int64_t host_bytes(const Point& point, bool with_weights) {
  const Problem& p = point.problem;
  const std::int64_t weights = with_weights ? bytes_per_element(DType::f32) * score_elements(p) : 0;
  const std::int64_t scratch =
      p.memory == Memory::host ? cost(point.entry->backend, p).scratch_bytes : 0;
  return 2 * (own_bytes(point) + weights) + scratch;
}

void compute(const Backend& backend, const Problem& problem, const Io& io) {
  const Cost cost = attn::cost(backend, problem);
  const FencedBuffer state(static_cast<std::size_t>(cost.state_bytes));
  prepare(backend, problem, io.parameters, state.data());
  if (problem.memory == Memory::device) {
    const auto device = make_device_point(backend, problem, io, state.data());
    device->upload();
    device->timed_run();
    device->download();
    return;
  }
  const Arena arena(static_cast<std::size_t>(cost.scratch_bytes));
  run(backend, problem, io, state.data(),
      arena.region(static_cast<std::size_t>(cost.scratch_bytes)));
}

void note_not_finite(const std::string& path, const std::vector<float>& values) {
  const auto count = std::count_if(values.begin(), values.end(),
                                   [](float value) { return !std::isfinite(value); });
  if (count > 0) {
    note(fmt::format("{} of the {} elements of {} are not finite", count, values.size(), path));
  }
}

}  // namespace

Exit command_apply(const Words& args) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an output that cannot be written
  const Request request = parse_apply(args);
  const Entry& entry = entry_called("apply", request.backend);
  const Backend& backend = entry.backend;
  expect_runnable(entry, request);
  if (!request.weights.empty() && target_of(request.weights) == target_of(request.out)) {
    usage_error(fmt::format("--weights and --out are both {}; use two files", request.out));
  }
  for (const std::string& path : {request.out, request.weights}) {
    if (!path.empty()) expect_writable(path);
  }
  const Tensor q(read_array("--q", request.q));
  const Tensor k(read_array("--k", request.k));
  const Tensor v(read_array("--v", request.v));
  Point point{.entry = &entry, .problem = problem_of(q, k, v, request)};
  Problem& problem = point.problem;
  problem.memory = backend.memory;
  problem.threads = threads_of(request, backend);
  if (const auto refusal = refuses(backend, problem)) {
    refuse(fmt::format("{} refuses: {}", entry.name, refusal->sentence));
  }

  const bool with_weights = !request.weights.empty();
  const std::int64_t needed = host_bytes(point, with_weights);
  const std::int64_t limit = default_mem_limit();
  if (needed > limit) {
    refuse(fmt::format(
        "{} needs {} bytes for these tensors, and {:.0f} % of the available memory is {}",
        entry.name, needed, 100 * default_memory_share, limit));
  }
  for (const auto& [name, tensor] : {std::pair{'q', &q}, std::pair{'k', &k}, std::pair{'v', &v}}) {
    if (tensor->array.stored != "float32") {
      note(fmt::format("{}: {}, converted to float32 in C order", name, tensor->array.stored));
    }
  }
  problem.threads = set_threads(problem.threads);
  std::optional<Tensor> out, weights;
  try {
    out.emplace(output_like(q, v.dim));
    Io io{.q = q.view(), .k = k.view(), .v = v.view(), .out = writable(*out)};
    if (with_weights) io.probabilities = writable(weights.emplace(output_like(q, k.tokens)));
    compute(backend, problem, io);
  } catch (const std::bad_alloc&) {
    refuse(fmt::format("{} needs {} bytes for these tensors, and they were not to be had",
                       entry.name, needed));
  } catch (const std::exception& error) {
    throw CommandError(Exit::wrong, fmt::format("{} failed: {}", entry.name, error.what()));
  }

  if (weights) write_array(request.weights, weights->array);
  write_array(request.out, out->array);
  note_not_finite(request.out, out->array.values);
  std::string text =
      fmt::format("{}: q {}, k {}, v {}, f32, {}, scale {}, {} thread{} -> {} {}", entry.name,
                  shape_text(q.array.shape), shape_text(k.array.shape), shape_text(v.array.shape),
                  request.causal ? "causal" : "no mask", problem.effective_scale(), problem.threads,
                  problem.threads == 1 ? "" : "s", request.out, shape_text(out->array.shape));
  if (weights) text += fmt::format(", {} {}", request.weights, shape_text(weights->array.shape));
  const bool stdout_has_an_array =
      is_standard_output(request.out) || is_standard_output(request.weights);
  fmt::print(stdout_has_an_array ? stderr : stdout, "{}\n", text);
  return Exit::good;
}

}  // namespace attn
