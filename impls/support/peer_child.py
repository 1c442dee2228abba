# SPDX-License-Identifier: MIT
"""The process of a peer: makes one call of a library on request and times it.

child.hpp starts it as `peer_child.py PEER SOCKET TENSORS PARENT CPUS`: a socket of packets, the
file that holds the tensors, the process to end with, and the processors that may be used. Requests:

    prepare batch=1 heads=4 ... scale=0.125    answer: the problem's number
    run NUMBER                                 answer: the call's nanoseconds

or `error` and a sentence. The clock holds the library's own entry for Python and nothing else of
this file: tensors are the library's own views of the shared memory, made beforehand.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import mmap
import os
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Calls longer than this are not warmed: they pass through the caches many times themselves.
SLOW_CALL_NS = 50_000_000


@dataclass(frozen=True)
class Problem:
    """What is to be computed, as in attention.hpp, and where its tensors are shared."""

    batch: int
    heads: int
    heads_kv: int
    n_q: int
    n_kv: int
    head_dim: int
    head_dim_v: int
    causal: bool
    bf16: bool
    threads: int
    scale: float
    offset: int
    bytes: int
    k: int
    v: int
    out: int

    @classmethod
    def parse(cls, words: list[str]) -> Problem:
        """The problem of a request's words, NAME=VALUE each."""
        values: dict[str, Any] = {}
        for name, value in (word.split("=") for word in words):
            values[name] = float(value) if name == "scale" else int(value)
        return cls(**values)


class Tensors:
    """The problem's tensors in the shared memory; bf16 as 16-bit words."""

    def __init__(self, p: Problem, file: int, token_major: bool) -> None:
        """Maps [batch, token, head * dim] where `token_major`, else [batch, head, token, dim]."""
        memory = mmap.mmap(file, p.bytes, flags=mmap.MAP_SHARED, offset=p.offset)

        def view(start: int, heads: int, tokens: int, dim: int) -> Array:
            shape = (p.batch, tokens, heads * dim) if token_major else (p.batch, heads, tokens, dim)
            words = np.uint16 if p.bf16 else np.float32
            count = p.batch * heads * tokens * dim
            return np.frombuffer(memory, words, count, start).reshape(shape)

        self.q = view(0, p.heads, p.n_q, p.head_dim)
        self.k = view(p.k, p.heads_kv, p.n_kv, p.head_dim)
        self.v = view(p.v, p.heads_kv, p.n_kv, p.head_dim_v)
        self.out = view(p.out, p.heads, p.n_q, p.head_dim_v)


class Peer:
    """One problem in a library's own terms."""

    token_major = False

    def __init__(self, p: Problem, t: Tensors) -> None:
        """Makes everything that a call needs."""
        self.problem = p
        self.tensors = t  # mapped as long as the library has their addresses

    def ready(self) -> None:
        """What has to be set again because another problem may have changed it."""

    def call(self) -> Any:
        """What is timed."""
        raise NotImplementedError

    def deliver(self, result: Any) -> None:
        """Brings the call's result into the shared memory if it is not there already."""


# ---- ONNX Runtime -------------------------------------------------------------------------------


def message(*fields: tuple[int, int | float | str | bytes]) -> bytes:
    """A message of Protocol Buffers: (field number, value) each, in their order."""

    def varint(value: int) -> bytes:
        low, high = value & 0x7F, value >> 7
        return bytes([low | 0x80]) + varint(high) if high else bytes([low])

    text = b""
    for number, value in fields:
        if isinstance(value, int):
            text += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            text += varint(number << 3 | 5) + struct.pack("<f", value)
        else:
            content = value.encode() if isinstance(value, str) else value
            text += varint(number << 3 | 2) + varint(len(content)) + content
    return text


ONNX_FLOAT, ONNX_INT32 = 1, 6


def onnx_model(
    op: str, inputs: dict[str, int], outputs: list[str], attributes: dict[str, int | float]
) -> bytes:
    """A model of one operator of com.microsoft, as onnx.proto has it; inputs by element type."""

    def value(name: str, element: int) -> bytes:
        return message((1, name), (2, message((1, message((1, element))))))

    def attribute(name: str, content: int | float) -> bytes:
        is_float = isinstance(content, float)
        return message((1, name), (2 if is_float else 3, content), (20, 1 if is_float else 2))

    domain = "com.microsoft"
    node = message(
        *((1, name) for name in inputs),
        *((2, name) for name in outputs),
        (4, op),
        *((5, attribute(*item)) for item in attributes.items()),
        (7, domain),
    )
    graph = message(
        (1, node),
        (2, op),
        *((11, value(*item)) for item in inputs.items()),
        *((12, value(name, ONNX_FLOAT)) for name in outputs),
    )
    opsets = [message((1, name), (2, version)) for name, version in (("", 17), (domain, 1))]
    return message((1, 8), (7, graph), *((8, opset) for opset in opsets))


class OnnxRuntime(Peer):
    """A session of one operator, with inputs and outputs bound where they lie."""

    token_major = True

    def bind(
        self, op: str, inputs: dict[str, Array], outputs: dict[str, Array], **attributes: int
    ) -> None:
        """Makes the session."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.problem.threads
        # As it comes, it spins for 16 ms and more after a call: into the next backend's sample.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "1000")
        options.log_severity_level = 3
        types = {
            name: ONNX_INT32 if a.dtype == np.int32 else ONNX_FLOAT for name, a in inputs.items()
        }
        model = onnx_model(op, types, list(outputs), {**attributes, "scale": self.problem.scale})
        self.session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self.binding = self.session.io_binding()
        self.arrays = (inputs, outputs)  # alive as long as their addresses are bound
        for bind, arrays in zip(
            (self.binding.bind_input, self.binding.bind_output), self.arrays, strict=True
        ):
            for name, a in arrays.items():
                bind(name, "cpu", 0, a.dtype.type, list(a.shape), a.ctypes.data)

    def call(self) -> None:
        """Runs the model."""
        self.session.run_with_iobinding(self.binding)


class OnnxRuntimeMha(OnnxRuntime):
    """MultiHeadAttention."""

    def __init__(self, p: Problem, t: Tensors) -> None:
        """Binds the three tensors and the output."""
        super().__init__(p, t)
        self.bind(
            "MultiHeadAttention",
            {"query": t.q, "key": t.k, "value": t.v},
            {"output": t.out},
            num_heads=p.heads,
            unidirectional=int(p.causal),
        )


class OnnxRuntimeGqa(OnnxRuntime):
    """GroupQueryAttention without a past; the cache that it makes is its user's."""

    def __init__(self, p: Problem, t: Tensors) -> None:
        """Binds the tensors, an empty past and room for the cache."""
        super().__init__(p, t)
        past = np.empty((p.batch, p.heads_kv, 0, p.head_dim), np.float32)
        cache = (p.batch, p.heads_kv, p.n_kv, p.head_dim)
        self.bind(
            "GroupQueryAttention",
            {
                "query": t.q,
                "key": t.k,
                "value": t.v,
                "past_key": past,
                "past_value": past,
                "seqlens_k": np.full(p.batch, p.n_kv - 1, np.int32),
                "total_sequence_length": np.array([p.n_kv], np.int32),
            },
            {
                "output": t.out,
                "present_key": np.empty(cache, np.float32),
                "present_value": np.empty(cache, np.float32),
            },
            num_heads=p.heads,
            kv_num_heads=p.heads_kv,
        )


# ---- ZenDNN -------------------------------------------------------------------------------------


class ZendnnSdpa(Peer):
    """The operator that zentorch registers with PyTorch; it makes its own output."""

    def __init__(self, p: Problem, t: Tensors) -> None:
        """Makes tensors of the shared memory."""
        super().__init__(p, t)
        import torch
        import zentorch  # noqa: F401

        def tensor(array: Array) -> Any:
            if p.bf16:
                return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
            return torch.from_numpy(array)

        self.torch = torch
        self.sdpa = torch.ops.zentorch.zentorch_sdpa
        self.q, self.k, self.v, self.out = (tensor(a) for a in (t.q, t.k, t.v, t.out))

    def ready(self) -> None:
        """PyTorch has one pool."""
        self.torch.set_num_threads(self.problem.threads)

    def call(self) -> Any:
        """Output and log-sum-exp."""
        p = self.problem
        return self.sdpa(self.q, self.k, self.v, 0.0, p.causal, scale=p.scale)

    def deliver(self, result: Any) -> None:
        """Copies the output."""
        self.out.copy_(result[0])


# ---- OpenVINO -----------------------------------------------------------------------------------


class OpenvinoSdpa(Peer):
    """A compiled model of one ScaledDotProductAttention."""

    def __init__(self, p: Problem, t: Tensors) -> None:
        """Compiles it and sets its tensors where they lie."""
        super().__init__(p, t)
        import openvino as ov
        from openvino import opset13

        element = ov.Type.bf16 if p.bf16 else ov.Type.f32
        q, k, v = (opset13.parameter(list(a.shape), element) for a in (t.q, t.k, t.v))
        # Given, it would bring a mask of zeros with it.
        scale = None if p.scale == 1 / math.sqrt(p.head_dim) else opset13.constant(p.scale, element)
        node = opset13.scaled_dot_product_attention(q, k, v, scale=scale, causal=p.causal)
        settings = {
            "INFERENCE_NUM_THREADS": p.threads,
            "INFERENCE_PRECISION_HINT": "bf16" if p.bf16 else "f32",
            "NUM_STREAMS": 1,
        }
        model = ov.Core().compile_model(ov.Model([node], [q, k, v]), "CPU", settings)
        self.request = model.create_infer_request()

        def tensor(array: Array) -> Any:
            if p.bf16:
                return ov.Tensor(array, list(array.shape), element)
            return ov.Tensor(array, shared_memory=True)

        for index, array in enumerate((t.q, t.k, t.v)):
            self.request.set_input_tensor(index, tensor(array))
        self.request.set_output_tensor(tensor(t.out))

    def call(self) -> None:
        """Runs the model."""
        self.request.infer()


# ---- requests -----------------------------------------------------------------------------------

PEERS: dict[str, type[Peer]] = {
    "onnxruntime.mha": OnnxRuntimeMha,
    "onnxruntime.gqa": OnnxRuntimeGqa,
    "zendnn.sdpa": ZendnnSdpa,
    "openvino.sdpa": OpenvinoSdpa,
}


def threads() -> list[str]:
    """The threads of this process."""
    return os.listdir("/proc/self/task")


def use_cpus(cpus: list[int]) -> None:
    """Every thread of this process may run on these processors only; new ones will be like them."""
    for thread in threads():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cpus)


def others_run() -> bool:
    """Whether a thread beside this one is at work, or spins."""
    mine = str(os.getpid())
    for thread in threads():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/self/task/{thread}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
            if state == "R" and thread != mine:
                return True
    return False


def rest() -> None:
    """Waits until the library's threads sleep: the next sample is another backend's."""
    for _ in range(2000):
        if not others_run():
            return
        time.sleep(0.0005)


class Server:
    """Answers requests until the parent has gone."""

    def __init__(self, peer: str, tensors: int, cpus: list[int]) -> None:
        """`tensors` is the file of the shared memory."""
        self.peer = PEERS[peer]
        self.tensors = tensors
        self.cpus = cpus
        self.used: list[int] = []
        self.prepared: list[Peer] = []
        self.nanoseconds: dict[int, int] = {}  # of a problem's last call

    def take_cpus(self, p: Problem) -> None:
        """As many processors as the problem has threads, as the harness does for its own."""
        wanted = self.cpus[: p.threads]
        if wanted != self.used:
            use_cpus(wanted)
            self.used = wanted

    def prepare(self, words: list[str]) -> int:
        """Makes the library's own objects for a problem, and tells its number."""
        p = Problem.parse(words)
        self.take_cpus(p)
        self.prepared.append(self.peer(p, Tensors(p, self.tensors, self.peer.token_major)))
        return len(self.prepared) - 1

    def run(self, number: int) -> int:
        """The nanoseconds of one call.

        It is called twice in a row, as the harness calls a backend of its own process before a
        sample: since its last call this process has slept, and tensors went through the caches.
        """
        peer = self.prepared[number]
        self.take_cpus(peer.problem)
        peer.ready()
        if self.nanoseconds.get(number, 0) <= SLOW_CALL_NS:
            peer.call()
        start = time.perf_counter_ns()
        result = peer.call()
        nanoseconds = time.perf_counter_ns() - start
        peer.deliver(result)
        rest()
        self.nanoseconds[number] = nanoseconds
        return nanoseconds

    def answer(self, request: str) -> str:
        """The answer to one request."""
        verb, *words = request.split()
        try:
            return str(self.prepare(words) if verb == "prepare" else self.run(int(words[0])))
        except Exception as error:
            return f"error {type(error).__name__}: {' '.join(str(error).split())}"[:1000]


def main() -> None:
    """Serves the parent that the command line names."""
    peer, channel, tensors, parent, cpus = sys.argv[1:]
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    server = Server(peer, int(tensors), [int(cpu) for cpu in cpus.split(",")])
    requests = socket.socket(fileno=int(channel))
    gc.disable()
    while request := requests.recv(4096):
        requests.send(server.answer(request.decode()).encode())


if __name__ == "__main__":
    main()
