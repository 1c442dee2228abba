// SPDX-License-Identifier: MIT
// The process of a peer, with peers of this test's own in it: no library is needed but NumPy.
#include "impls/support/child.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "tests/impls/check.hpp"

namespace attn::test {
namespace {

constexpr Peer peer_called(const char* name, bool token_major = false) {
  return {.name = name,
          .environment = ".venv",
          .package = "numpy",
          .op = "matmul",
          .token_major = token_major,
          .script = "tests/impls/child_test_peers.py"};
}
constexpr Peer honest = peer_called("test.honest");
constexpr Peer token_major = peer_called("test.token_major", true);
constexpr Peer throws = peer_called("test.throws");
constexpr Peer dies = peer_called("test.dies");
constexpr Peer hangs = peer_called("test.hangs");
constexpr Peer unknown = peer_called("test.unknown");

std::optional<Refusal> no_limits(const Problem&) { return std::nullopt; }

template <const Peer& peer>
Backend backend() {
  return PeerBackend<peer, no_limits>::backend();
}

Case small() {
  return core_case("child", 21, [](Case& c) {
    set_heads(c, 4, 2), set_dims(c, 16, 8);
    c.problem.batch = 3;
    c.slack = true;
  });
}

class ChildProcess : public testing::Test {
 protected:
  void SetUp() override {
    if (installed_version(honest).empty()) GTEST_SKIP() << "there is no .venv with NumPy";
  }
};

// What prepare and one run throw, or "".
std::string failure_of(const Backend& backend) {
  const Case c = small();
  const Tensors tensors(c, backend);
  Remote state{};
  try {
    backend.prepare(c.problem, {}, &state);
    backend.run(c.problem, tensors.io, &state, nullptr);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST_F(ChildProcess, TensorsOfAnyStridesGoThereAndComeBack) {
  for (const Backend& peer : {backend<honest>(), backend<token_major>()}) {
    SCOPED_TRACE(peer.name);
    ASSERT_FALSE(refuses(peer, small().problem).has_value());
    check_run(small(), peer, peer.cost(small().problem),
              [&](const Problem& p, const Io& given, void* state, void* scratch) {
                double seconds = 0;
                Io io = given;
                io.seconds = &seconds;
                const auto start = std::chrono::steady_clock::now();
                peer.run(p, io, state, scratch);
                const std::chrono::duration<double> host = std::chrono::steady_clock::now() - start;
                EXPECT_GT(seconds, 0);
                EXPECT_LE(seconds, host.count());
              });
  }
}

TEST_F(ChildProcess, AFailureIsASentence) {
  EXPECT_EQ(failure_of(backend<throws>()), "test.throws: ValueError: a sentence of two lines");
}

TEST_F(ChildProcess, ADeathIsNamedAndTheNextProblemStartsAnother) {
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(failure_of(backend<dies>()), "test.dies: its process ended with code 3: said last");
  }
  EXPECT_THAT(failure_of(backend<unknown>()), testing::HasSubstr("KeyError: 'test.unknown'"));
}

TEST(ChildRefusal, WhatIsNotThereIsUnavailable) {
  static constexpr Peer nowhere{
      .name = "test.nowhere", .environment = ".no-such", .package = "numpy", .op = "matmul"};
  const auto refusal = backend<nowhere>().refuses(small().problem);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->kind, Refusal::Kind::unavailable);
  EXPECT_EQ(refusal->sentence, "needs numpy in .no-such: run scripts/setup.sh --peers");
}

bool is_gone(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return true;
  return text[text.rfind(')') + 2] == 'Z';  // whoever inherits it may not look
}

// The parent is killed while its child is inside a call, where no socket is read.
TEST_F(ChildProcess, NoneOutlivesItsParent) {
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const Backend peer = backend<hangs>();
    const Case c = small();
    const Tensors tensors(c, peer);
    Remote state{};
    peer.prepare(c.problem, {}, &state);
    const pid_t child = PeerBackend<hangs, no_limits>::child()->pid();
    if (write(report[1], &child, sizeof child) != sizeof child) std::_Exit(1);
    peer.run(c.problem, tensors.io, &state, nullptr);
    std::_Exit(0);
  }
  pid_t child = 0;
  ASSERT_EQ(read(report[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(is_gone(child));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  for (int tries = 0; tries < 500 && !is_gone(child); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(is_gone(child)) << "process " << child;
  close(report[0]), close(report[1]);
}

}  // namespace
}  // namespace attn::test
