"""Why an engine failed: its words held against known failures. Pure.

A row is (cause, pattern, summary, fix, retryable). Rows stand from specific to general, and the first row that
matches anywhere in the log wins: a closing wrapper line never hides the root above it. `{1}` in a summary or fix is
the pattern's first group. Texts are those of vLLM 0.15 to 0.33; numbers in comments are rows of the failure table.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from deploy.engine.log import Line

DOOMED = False
TRANSIENT = True


# A line that ends in an exception, and the closing ones that only say that another process had one.
EXCEPTION = re.compile(r"\b(\w*(?:Error|Exception)): (?=\S)(.+)")
WRAPPERS = re.compile(
    r"initialization failed|Executor failed|EngineCore encountered|EngineDeadError|[Cc]ancelled|Failed core proc"
)


class Row(NamedTuple):
    """One known failure."""

    cause: str
    pattern: re.Pattern[str]
    summary: str
    fix: tuple[str, ...]
    retryable: bool


def _row(cause: str, pattern: str, summary: str, fix: Sequence[str], retryable: bool) -> Row:
    return Row(cause, re.compile(pattern), summary, tuple(fix), retryable)


ROWS = (
    _row(
        "bad-arguments",
        r"error: (unrecognized arguments: .*|argument .*|ambiguous option.*)",
        "vLLM refused the command line: {1}",
        ["take the flag out of the profile's args, or give it the name that this vLLM knows"],
        DOOMED,
    ),
    _row(
        "port-in-use",
        r"\[Errno 98\].*[Aa]ddress already in use",
        "another server has the port",
        ["stop it, or choose another: --port PORT"],
        DOOMED,
    ),
    _row(
        "bad-arguments",
        r"(Reasoning parser '.*' not found|invalid reasoning parser: \S+|invalid tool call parser: \S+)",
        "{1}",
        ["kimi_k2, minimax_m2 and glm45/glm47 are the names for this tool's models"],
        DOOMED,
    ),
    _row(
        "bad-arguments",
        r"attention_backend and attention_config\.backend are mutually exclusive",
        "both --attention-backend and --attention-config name a backend",
        ["keep one of them"],
        DOOMED,
    ),
    _row(
        "bad-arguments",
        r"Unknown attention backend: '([^']+)'",
        "this vLLM has no attention backend {1}",
        ["take attention-backend out of args to let vLLM choose"],
        DOOMED,
    ),
    _row(
        "tensor-parallel-invalid",
        r"Total number of attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "{1} attention heads cannot be split over {2} ranks",
        ["--set parallel.tensor=N with N a divisor of {1}"],
        DOOMED,
    ),
    _row(
        "tensor-parallel-invalid",
        r"tp_size=(\d+) must be divisible by dcp_size=(\d+)",
        "decode context parallel {2} does not divide tensor parallel {1}",
        ["--set parallel.decode_context=N with N a divisor of {1}"],
        DOOMED,
    ),
    _row(
        "tensor-parallel-invalid",
        r"output_size of gate's and up's weight = (\d+) is not divisible by weight quantization block_n = (\d+)",
        "the FP8 blocks of {2} do not divide the {1} rows of a rank",
        ["--set parallel.tensor=4, or --set parallel.expert=true"],
        DOOMED,
    ),
    _row(
        "context-too-long",
        r"max_model_len \((\d+)\) is greater than the derived max_model_len \([^)]*?=?(\d+)",
        "serve.max_model_len {1} is longer than the model allows ({2})",
        ["--set serve.max_model_len={2}"],
        DOOMED,
    ),
    _row(
        "too-few-gpus",
        r"World size \((\d+)\) is larger than the number of available GPUs",
        "{1} ranks, but vLLM sees fewer GPUs",
        ["kdeploy gpus shows them"],
        DOOMED,
    ),
    _row(
        "model-not-found",
        r"HFValidationError: Repo id must be in the form .*: '([^']+)'",
        "the model folder {1} does not exist for the engine",
        ["--set model.path=/path/to/model"],
        DOOMED,
    ),
    _row(
        "model-not-found",
        r"(LocalEntryNotFoundError|RepositoryNotFoundError|Cannot find an appropriate cached snapshot folder)",
        "the model is neither on disk nor reachable on the hub",
        ["fetch it first, or name its folder: --set model.path=/path/to/model"],
        DOOMED,
    ),
    _row(
        "model-gated",
        r"(GatedRepoError|401 Client Error|Cannot access gated repo)",
        "the hub refuses the model: no token, or its licence is not accepted",
        ["accept the licence on the hub and set env: {{HF_TOKEN: ${{env:HF_TOKEN}}}}"],
        DOOMED,
    ),
    _row(
        "trust-remote-code",
        r"(requires you to execute the configuration file in that repo|contains custom code which must be executed"
        r"|--trust-remote-code)",
        "the checkpoint brings its own code, which is not trusted",
        ["--set model.trust_remote_code=true, with model.revision pinned"],
        DOOMED,
    ),
    _row(
        "model-unsupported",
        r"Model architectures (\[.*?\]) are not supported",
        "this vLLM does not know {1}",
        ["install a newer engine: kdeploy engine install VERSION"],
        DOOMED,
    ),
    _row(
        "checkpoint-damaged",
        r"(SafetensorError: .*|InvalidHeaderDeserialization|HeaderTooLarge|Cannot find any model weights with .*)",
        "weight files are damaged or missing: {1}",
        ["fetch the named files again"],
        DOOMED,
    ),
    _row(
        "checkpoint-mismatch",
        r"MTP speculative decoding layer (\d+) weights missing from checkpoint",
        "the checkpoint has no draft (MTP) layer {1}",
        ["take speculative-config out of args, or use a checkpoint with MTP layers"],
        DOOMED,
    ),
    _row(
        "checkpoint-mismatch",
        r"Attempted to load weight \((.*?)\) into parameter \((.*?)\)",
        "a weight of shape {1} does not fit the model's {2}: config.json and weights disagree",
        ["fetch config.json and the weights of one revision"],
        DOOMED,
    ),
    _row(
        "kv-cache-too-small",
        r"max seq len \((\d+)\).*?([\d.]+) GiB KV cache is needed.*?\(([\d.]+) GiB\).*?maximum model length is (\d+)",
        "a context of {1} tokens needs {2} GiB of KV cache, and {3} GiB are left",
        ["--set serve.max_model_len={4}"],
        DOOMED,
    ),
    _row(
        "kv-cache-too-small",
        r"max seq len \((\d+)\).*?([\d.]+) GiB KV cache is needed.*?\(([\d.]+) GiB\)",
        "a context of {1} tokens needs {2} GiB of KV cache, and {3} GiB are left: not enough for any context",
        ["raise serve.gpu_memory_utilization, or lower serve.max_model_len"],
        DOOMED,
    ),
    _row(
        "kv-cache-too-small",
        r"max seq len \((\d+)\) is larger than the maximum number of tokens that can be stored in KV cache \((\d+)\)",
        "a context of {1} tokens does not fit the KV cache, which holds {2}",
        ["--set serve.max_model_len={2}"],
        DOOMED,
    ),
    _row(
        "kv-cache-too-small",
        r"No available memory for the cache blocks",
        "weights and activations leave no memory for the KV cache",
        ["raise serve.gpu_memory_utilization, or lower args.max-num-batched-tokens"],
        DOOMED,
    ),
    _row(
        "gpu-memory-held",
        r"Free memory on device (?:(\S+) )?\(([\d.]+)/([\d.]+) GiB\) on startup",
        "GPU {1} has only {2} of {3} GiB free: another process holds the rest",
        ["kdeploy gpus shows who holds it"],
        TRANSIENT,
    ),
    _row(
        "gpu-memory-held",
        r"Error in memory profiling\. Initial free memory ([\d.]+) GiB, current free memory ([\d.]+) GiB",
        "another process freed GPU memory while vLLM measured it ({1} GiB before, {2} GiB after)",
        ["kdeploy gpus shows who else uses the GPUs; start again when they are quiet"],
        TRANSIENT,
    ),
    _row(
        "cuda-out-of-memory",
        r"(CUDA out of memory|torch\.OutOfMemoryError|not enough GPU memory)",
        "the GPU ran out of memory",
        ["lower serve.gpu_memory_utilization by 0.02, or args.max-num-seqs"],
        DOOMED,
    ),
    _row(
        "attention-backend-invalid",
        r"(Selected backend \S+ is not valid for this configuration.*|No valid attention backend found.*)",
        "{1}",
        ["take attention-backend out of args to let vLLM choose"],
        DOOMED,
    ),
    _row(
        "attention-backend-invalid",
        r"\(DCP\) requires attention implementations to return the softmax LSE during decode, but (\S+) does not",
        "decode context parallel does not work with the attention of {1}",
        ["--set parallel.decode_context=1"],
        DOOMED,
    ),
    _row(
        "moe-backend-invalid",
        r"(MoE backend \S+ does not support the deployment configuration.*"
        r"|No \S+ MoE backend supports the deployment configuration.*|MoE kernel does not support current device \S+)",
        "{1}",
        ["take moe-backend out of args to let vLLM choose, or install a newer engine"],
        DOOMED,
    ),
    _row(
        "quantization-unsupported",
        r"(quantization method \S+) is not supported for the current GPU\. Minimum capability: (\d+)",
        "the {1} needs a GPU of capability {2} or newer",
        ["choose another quantization of the model"],
        DOOMED,
    ),
    _row(
        "driver-too-old",
        r"(NVIDIA driver on your system is too old.*|CUDA driver version is insufficient.*)",
        "{1}",
        ["upgrade the driver: CUDA 13 wheels need 580 or newer"],
        DOOMED,
    ),
    _row(
        "no-kernel-for-gpu",
        r"(no kernel image is available for execution on the device|No compiled cutlass_scaled_mm.*)",
        "the engine was not built for this GPU",
        ["install a wheel with sm_120 kernels: kdeploy engine install VERSION"],
        DOOMED,
    ),
    _row(
        "out-of-space",
        r"(No space left on device|posix_fallocate failed)",
        "a disk or /dev/shm is full",
        ["df -h; in a container raise --shm-size"],
        DOOMED,
    ),
    _row(
        "nccl-failed",
        r"(NCCL error: .*|Failed to CUDA calloc \d+ bytes)",
        "NCCL failed: {1}",
        ["on 4 ranks unset NCCL_GRAPH_FILE; check /dev/shm and memlock; lower serve.gpu_memory_utilization"],
        TRANSIENT,
    ),
    _row(
        "stalled",
        r"Timed out waiting for engine core processes to start.*?Waited (\d+)s",
        "vLLM gave its own load up after {1} s",
        ["--set env.VLLM_ENGINE_READY_TIMEOUT_S=3600"],
        TRANSIENT,
    ),
    _row(
        "worker-died",
        r"(Worker proc \S+ died unexpectedly) \(exit code: (-?\d+|None)\)",
        "{1} with exit code {2}",
        ["-9: the OOM killer or a kill; -11: a crash in native code; see the log above it"],
        TRANSIENT,
    ),
)


def diagnose(
    trouble: Iterable[Line], *, exit_code: int | None, signal: str | None, tail: Sequence[Line]
) -> dict[str, Any]:
    """The diagnosis of an engine that ended by itself.

    Args:
        trouble: the log's lines that speak of trouble, oldest first.
        exit_code: of the engine's first process; None when a signal ended it or it is not known.
        signal: name of the signal that ended it.
        tail: the last lines of the log, shown when nothing is known.
    """
    lines = list(trouble)
    for row in ROWS:
        for line in lines:
            match = row.pattern.search(line.text)
            if match:
                return _found(row, match, line)
    return _unknown(lines, exit_code, signal, tail)


def _found(row: Row, match: re.Match[str], line: Line) -> dict[str, Any]:
    groups = ["", *(group or "" for group in match.groups())]
    return {
        "cause": row.cause,
        "summary": row.summary.format(*groups),
        "evidence": [{"line": line.number, "text": line.text[:500]}],
        "fix": [fix.format(*groups) for fix in row.fix],
        "retryable": row.retryable,
    }


def _unknown(lines: Sequence[Line], exit_code: int | None, signal: str | None, tail: Sequence[Line]) -> dict[str, Any]:
    """No known failure: the last exception of the log that is no wrapper, and its last lines."""
    if exit_code == 2:
        cause, summary = "bad-arguments", "vLLM refused the command line (exit code 2)"
    elif signal is not None:
        cause, summary = "engine-died", f"the engine was ended by {signal}, and not by kdeploy"
    elif exit_code is None:
        cause, summary = "engine-died", "the engine is gone; its exit code is not known"
    else:
        cause, summary = "engine-died", f"the engine exited by itself with code {exit_code}"
    roots = [line for line in lines if EXCEPTION.search(line.text) and not WRAPPERS.search(line.text)]
    found = EXCEPTION.search(roots[-1].text) if roots else None
    if found:
        summary += f"; its log says: {found[0][:300]}"
    shown = {line.number: line.text[:500] for line in [*lines[-3:], *tail][-6:] + roots[-1:]}
    evidence = [{"line": number, "text": text} for number, text in sorted(shown.items())]
    return {
        "cause": cause,
        "summary": summary,
        "evidence": evidence,
        "fix": [],
        "retryable": cause != "bad-arguments",
    }
