// SPDX-License-Identifier: MIT
// A race: both threads add to one sum. The loop before it is none, for every element has one writer
// and the barrier at its end orders it before the next.
#include <array>
#include <cstdio>

int main() {
  std::array<long, 1000> values{};
#pragma omp parallel for num_threads(2) schedule(static)
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<long>(i);
  long sum = 0;
#pragma omp parallel for num_threads(2) schedule(static, 1)
  for (const long value : values) sum += value;
  std::printf("%ld\n", sum);
}
