// SPDX-License-Identifier: MIT
// A library that only Python reaches, as a backend: it lives in a process of its own, whose script is
// peer_child.py, and tensors go there through shared memory. `run` copies its inputs over, asks for
// one call and sleeps until the answer comes with the time that the call alone took. So a round still
// alternates between backends, and the library has the cores to itself.
//
// One process a backend and worker. It ends with its parent: the kernel kills it then, and its socket
// tells it so.
#pragma once

#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "impls/attention.hpp"

namespace attn {

struct Peer {
  const char* name;          // folder.stem, also what the script calls it
  const char* environment;   // where scripts/setup.sh puts it, from the root of the sources
  const char* package;       // as its metadata spells it
  const char* op;            // what of it is called
  bool token_major = false;  // [batch, token, head, dim] instead of [batch, head, token, dim]
  bool bf16 = false;         // has it beside f32
  const char* script = "impls/support/peer_child.py";
};

// Before anything was pinned: the harness pins the thread that starts the child.
inline const cpu_set_t cpus_at_start = [] {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  sched_getaffinity(0, sizeof cpus, &cpus);
  return cpus;
}();

// The version that is installed, or "".
inline std::string installed_version(const Peer& peer) {
  const std::string stem = std::string("/") + peer.package + "-";
  const std::string tail = ".dist-info";
  const std::string pattern = std::string(ATTN_SOURCE_DIR "/") + peer.environment +
                              "/lib/python3*/site-packages" + stem + "*" + tail;
  glob_t found{};
  std::string version;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    const std::string path = found.gl_pathv[0];
    const std::size_t begin = path.rfind(stem) + stem.size();
    version = path.substr(begin, path.size() - tail.size() - begin);
  }
  globfree(&found);
  return version;
}

inline std::optional<Refusal> refuse_unless_installed(const Peer& peer,
                                                      const std::string& version) {
  if (!version.empty()) return std::nullopt;
  return Refusal{.kind = Refusal::Kind::unavailable,
                 .sentence = std::string("needs ") + peer.package + " in " + peer.environment +
                             ": run scripts/setup.sh --peers"};
}

// A core in host memory with at least one element, whose rows all see a key. The causal corner of these
// libraries lies top-left, or the keys before it would be a cache of their own.
inline std::optional<Refusal> refuse_unless_peer_core(const Peer& peer, const Problem& p) {
  if (p.dtype != DType::f32 && !(peer.bf16 && p.dtype == DType::bf16)) {
    return Refusal{.sentence =
                       peer.bf16 ? "computes in f32 and bf16 only" : "computes in f32 only"};
  }
  if (p.memory != Memory::host) return Refusal{.sentence = "reads host memory only"};
  if (p.batch * p.n_q * p.n_kv * p.head_dim_v == 0) {
    return Refusal{.sentence = "the library is not handed empty tensors"};
  }
  if (!p.key_lengths.empty()) return Refusal{.sentence = "is called without key lengths"};
  if (p.mask == Mask::causal && p.n_q != p.n_kv) {
    return Refusal{.sentence = "its causal mask needs as many keys as queries"};
  }
  return std::nullopt;
}

// The products that the problem asks for, and its tensors once: what a library does inside is not
// known, so both are the least.
inline Cost least_cost(const Problem& p, std::int64_t state_bytes) {
  const std::int64_t pairs = p.heads * p.pairs();
  return {.flops = 2 * pairs * (p.head_dim + p.head_dim_v),
          .exps = pairs,
          .exps_at_least = true,
          .bytes = bytes_per_element(p.dtype) * p.batch * (p.heads * p.n_q + p.heads_kv * p.n_kv) *
                   (p.head_dim + p.head_dim_v),
          .state_bytes = state_bytes};
}

class Child {
 public:
  explicit Child(const Peer& peer) : peer_(peer) {
    int sockets[2];
    tensors_ = need(memfd_create("attnbench tensors", MFD_CLOEXEC), "memfd_create");
    said_ = need(memfd_create("attnbench stderr", MFD_CLOEXEC), "memfd_create");
    need(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), "socketpair");
    socket_ = sockets[0];
    start(sockets[1]);
    close(sockets[1]);
  }
  ~Child() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (const int fd : {socket_, tensors_, said_}) close(fd);
  }
  Child(const Child&) = delete;

  [[nodiscard]] bool alive() const { return pid_ > 0; }
  [[nodiscard]] pid_t pid() const { return pid_; }

  // Page-aligned shared memory, zeros, resident at once, for as long as this process lives; `offset`
  // is where the child finds it.
  char* share(std::int64_t bytes, std::int64_t& offset) {
    const std::int64_t page = sysconf(_SC_PAGESIZE);
    offset = shared_;
    const std::int64_t whole = (bytes + page - 1) / page * page;
    need(ftruncate(tensors_, shared_ + whole), "ftruncate");
    void* memory = mmap(nullptr, static_cast<std::size_t>(whole), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_POPULATE, tensors_, offset);
    if (memory == MAP_FAILED) need(-1, "mmap");
    shared_ += whole;
    return static_cast<char*>(memory);
  }

  // The child's answer; throws its sentence, or what it said last before it ended.
  std::string ask(const std::string& request) {
    std::array<char, 4096> answer{};
    ssize_t size = TEMP_FAILURE_RETRY(send(socket_, request.data(), request.size(), MSG_NOSIGNAL));
    if (size >= 0) size = TEMP_FAILURE_RETRY(recv(socket_, answer.data(), answer.size(), 0));
    if (size <= 0) fail(ending());
    const std::string_view text(answer.data(), static_cast<std::size_t>(size));
    constexpr std::string_view error = "error ";
    if (text.starts_with(error)) fail(std::string(text.substr(error.size())));
    return std::string(text);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(std::string(peer_.name) + ": " + what);
  }
  int need(int result, const char* call) const {
    if (result < 0) fail(std::string(call) + " failed: " + std::strerror(errno));
    return result;
  }

  void start(int socket) {
    const std::string python = std::string(ATTN_SOURCE_DIR "/") + peer_.environment + "/bin/python";
    std::string cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &cpus_at_start)) continue;
      if (!cpus.empty()) cpus += ',';
      cpus += std::to_string(cpu);
    }
    std::array<std::string, 8> words = {python,
                                        "-I",
                                        std::string(ATTN_SOURCE_DIR "/") + peer_.script,
                                        peer_.name,
                                        std::to_string(socket),
                                        std::to_string(tensors_),
                                        std::to_string(getpid()),
                                        cpus};
    std::array<char*, words.size() + 1> argv{};
    for (std::size_t i = 0; i < words.size(); ++i) argv[i] = words[i].data();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, said_, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, said_, STDERR_FILENO);
    // Onto itself: then it stays open.
    for (const int fd : {socket, tensors_}) posix_spawn_file_actions_adddup2(&actions, fd, fd);
    const int error = posix_spawn(&pid_, python.c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      pid_ = -1;
      fail("cannot start " + python + ": " + std::strerror(error));
    }
  }

  // How the child ended, and the last line that it said.
  std::string ending() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    std::string text = WIFSIGNALED(status)
                           ? "its process was ended by signal " + std::to_string(WTERMSIG(status))
                           : "its process ended with code " + std::to_string(WEXITSTATUS(status));
    std::array<char, 4096> tail{};
    const off_t end = lseek(said_, 0, SEEK_END);
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(tail.size()));
    const ssize_t size = pread(said_, tail.data(), tail.size(), begin);
    std::string said(tail.data(), static_cast<std::size_t>(std::max<ssize_t>(0, size)));
    while (!said.empty() && said.back() == '\n') said.pop_back();
    said = said.substr(said.rfind('\n') + 1);
    return said.empty() ? text : text + ": " + said;
  }

  const Peer peer_;
  pid_t pid_ = -1;
  int socket_ = -1;
  int tensors_ = -1;
  int said_ = -1;
  std::int64_t shared_ = 0;  // bytes of `tensors_`
};

// The problem's tensors in the shared memory, one behind the other, and its number there.
struct Remote {
  std::int64_t number;
  char* memory;
};

struct Packed {
  View q, k, v, out;
  std::int64_t offset_k, offset_v, offset_out, bytes;

  Packed(const Peer& peer, const Problem& p, char* memory) : bytes(0) {
    const auto take = [&](std::int64_t heads, std::int64_t tokens, std::int64_t dim) {
      View view{memory + bytes, heads * tokens * dim, tokens * dim, dim};
      if (peer.token_major) view.head_stride = dim, view.token_stride = heads * dim;
      const std::int64_t size = p.batch * view.batch_stride * bytes_per_element(p.dtype);
      bytes += (size + 63) / 64 * 64;
      return view;
    };
    q = take(p.heads, p.n_q, p.head_dim);
    offset_k = bytes;
    k = take(p.heads_kv, p.n_kv, p.head_dim);
    offset_v = bytes;
    v = take(p.heads_kv, p.n_kv, p.head_dim_v);
    offset_out = bytes;
    out = take(p.heads, p.n_q, p.head_dim_v);
  }
};

// Every row from one view to another; T has the size of an element.
template <class T, class From>
void copy_rows(std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t dim,
               const From& from, const View& to) {
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::copy_n(from.template row<T>(b, h, t), dim, to.template row<T>(b, h, t));
      }
    }
  }
}

template <class T>
void copy_inputs(const Problem& p, const Io& io, const Packed& to) {
  copy_rows<T>(p.batch, p.heads, p.n_q, p.head_dim, io.q, to.q);
  copy_rows<T>(p.batch, p.heads_kv, p.n_kv, p.head_dim, io.k, to.k);
  copy_rows<T>(p.batch, p.heads_kv, p.n_kv, p.head_dim_v, io.v, to.v);
}

// A backend around `peer`; `limits` says what this one library does not do.
template <const Peer& peer, std::optional<Refusal> (*limits)(const Problem&)>
struct PeerBackend {
  static const std::string& version() {
    static const std::string installed = installed_version(peer);
    return installed;
  }

  static std::optional<Refusal> refuses(const Problem& p) {
    if (auto refusal = refuse_unless_installed(peer, version())) return refusal;
    if (auto refusal = refuse_unless_peer_core(peer, p)) return refusal;
    return limits(p);
  }

  static Cost cost(const Problem& p) { return least_cost(p, sizeof(Remote)); }

  static std::optional<Child>& child() {
    static std::optional<Child> started;
    return started;
  }

  static void prepare(const Problem& p, const Parameters& /*parameters*/, void* state) {
    if (!child() || !child()->alive()) child().emplace(peer);
    std::int64_t offset = 0;
    const Packed sizes(peer, p, nullptr);
    char* const memory = child()->share(sizes.bytes, offset);
    std::string request = "prepare";
    const auto add = [&](const char* name, std::int64_t value) {
      request += std::string(" ") + name + "=" + std::to_string(value);
    };
    add("batch", p.batch), add("heads", p.heads), add("heads_kv", p.heads_kv);
    add("n_q", p.n_q), add("n_kv", p.n_kv);
    add("head_dim", p.head_dim), add("head_dim_v", p.head_dim_v);
    add("causal", p.mask == Mask::causal), add("bf16", p.dtype == DType::bf16);
    add("threads", p.threads);
    add("offset", offset), add("bytes", sizes.bytes), add("k", sizes.offset_k);
    add("v", sizes.offset_v), add("out", sizes.offset_out);
    std::array<char, 32> scale{};
    std::snprintf(scale.data(), scale.size(), " scale=%.17g", p.effective_scale());
    const std::string answer = child()->ask(request + scale.data());
    const Remote remote{std::stoll(answer), memory};
    std::memcpy(state, &remote, sizeof remote);
  }

  static void run(const Problem& p, const Io& io, void* state, void* /*scratch*/) {
    Remote remote{};
    std::memcpy(&remote, state, sizeof remote);
    const Packed shared(peer, p, remote.memory);
    const bool words = p.dtype == DType::f32;
    words ? copy_inputs<float>(p, io, shared) : copy_inputs<std::uint16_t>(p, io, shared);
    const std::string nanoseconds = child()->ask("run " + std::to_string(remote.number));
    if (io.seconds != nullptr) *io.seconds = 1e-9 * static_cast<double>(std::stoll(nanoseconds));
    if (words) {
      copy_rows<float>(p.batch, p.heads, p.n_q, p.head_dim_v, shared.out, io.out);
    } else {
      copy_rows<std::uint16_t>(p.batch, p.heads, p.n_q, p.head_dim_v, shared.out, io.out);
    }
  }

  static std::string resolved_impl(const Problem& /*p*/) {
    return std::string(peer.package) + " " + version() + ", " + peer.op;
  }

  static Backend backend() {
    return {.name = peer.name,
            .threaded = true,
            .own_clock = true,
            .refuses = refuses,
            .cost = cost,
            .prepare = prepare,
            .run = run,
            .resolved_impl = resolved_impl};
  }
};

}  // namespace attn
