"""The MLA kernels of patches/sm120-mla: numerics in Triton's interpreter, compilation for GPUs that are not here.

The kernels need torch and triton, which kdeploy's own environment has not: the installed CPU engine's interpreter runs
them, and the cases come from here. `KDEPLOY_MLA_EXAMPLES=500` runs more of them.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("KDEPLOY_MLA_EXAMPLES", "12"))
Ask = Callable[[dict[str, Any]], dict[str, Any]]

pytestmark = pytest.mark.real
few = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=EXAMPLES < 100,
)


def engine_python() -> Path:
    """The interpreter of the installed CPU engine."""
    data = Path(os.environ.get("KDEPLOY_DATA_DIR") or Path.home() / ".local/share/kdeploy")
    found = sorted(data.glob("engines/*/venv/bin/python"))
    if not found:
        pytest.skip("no engine is installed: kdeploy engine install 0.32.0 --cpu")
    return found[-1]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Ask the worker process one question; an answer is one JSON object."""
    errors = tmp_path_factory.mktemp("mla") / "stderr"
    with errors.open("w") as stderr:
        worker = subprocess.Popen(
            [engine_python(), ROOT / "tests/real/mla_worker.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
    assert worker.stdin is not None
    assert worker.stdout is not None

    def one(case: dict[str, Any]) -> dict[str, Any]:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(case) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        assert line, errors.read_text()[-3000:]
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    yield one
    worker.stdin.close()
    worker.wait(30)
    worker.stdout.close()


def right(answer: dict[str, Any]) -> None:
    """The answer is the reference's: 1e-5 relative to the size of what was computed in fp32."""
    assert answer["empty_agree"], answer
    assert answer["finite"], answer
    assert answer["out"] < 2e-5, answer
    assert answer["lse"] < 1e-5 * max(1.0, answer["lse_size"]), answer


common = {
    "seed": st.integers(0, 1 << 30),
    "layout": st.sampled_from(["bf16", "fp8", "packed", "packed-pow2"]),
    "page_size": st.sampled_from([1, 7, 16, 64]),
    "page_gap": st.integers(0, 2),
    "heads": st.sampled_from([1, 3, 8, 16, 17, 64, 128]),
    "splits": st.integers(1, 5),
    "magnitude": st.sampled_from([0.01, 1.0, 8.0]),
    "query_magnitude": st.sampled_from([0.0, 1.0, 4.0]),
}


@few
@given(
    case=st.fixed_dictionaries(
        common
        | {
            "kind": st.just("lists"),
            "tokens": st.integers(1, 2),
            "pages": st.integers(1, 4),
            "width": st.integers(1, 150),
            "holes": st.sampled_from([0.0, 0.3, 1.0]),
            "lengths": st.lists(st.integers(0, 150), min_size=2, max_size=2),
        }
    )
)
def test_attention_over_lists_of_rows(ask: Ask, case: dict[str, Any]) -> None:
    right(ask(case))


@few
@given(
    case=st.fixed_dictionaries(
        common
        | {
            "kind": st.just("paged"),
            "requests": st.integers(1, 2),
            "query_len": st.integers(1, 3),
            "lengths": st.lists(st.integers(1, 150), min_size=2, max_size=2),
        }
    )
)
def test_attention_over_a_block_table(ask: Ask, case: dict[str, Any]) -> None:
    right(ask(case))


@few
@given(
    case=st.fixed_dictionaries(
        {
            "kind": st.just("context_parallel"),
            "seed": st.integers(0, 1 << 30),
            "ranks": st.sampled_from([1, 2, 8]),
            "interleave": st.sampled_from([1, 4]),
            "page_size": st.sampled_from([4, 16]),
            "length": st.integers(1, 200),
            "width": st.sampled_from([16, 100, 256]),
            "heads": st.sampled_from([8, 64]),
        }
    )
)
def test_ranks_merged_by_lse_equal_one_rank(ask: Ask, case: dict[str, Any]) -> None:
    right(ask(case))


@pytest.mark.parametrize("length", [1, 100_000])
def test_one_token_and_a_hundred_thousand(ask: Ask, length: int) -> None:
    case = {
        "kind": "paged", "seed": 1, "block_n": 1024,
        "layout": "bf16", "page_size": 64, "page_gap": 0, "heads": 8, "splits": 8,
        "magnitude": 1.0, "query_magnitude": 1.0, "requests": 1, "query_len": 1, "lengths": [length],
    }  # fmt: skip
    right(ask(case))


def test_fp8_rows_are_those_that_vllm_writes(ask: Ask) -> None:
    answer = ask({"kind": "writer"})
    if "absent" in answer:
        pytest.skip(f"the installed wheel writes no fp8 cache: {answer['absent']}")
    assert answer["worst"] == 0.0


def test_every_configuration_compiles_within_the_limits(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = subprocess.run(
        [engine_python(), ROOT / "scripts/check-mla-compile", "--json", report],
        capture_output=True, text=True, env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(report.read_text())["rows"]
    assert {row["capability"] for row in rows} == {"12.0", "9.0", "10.0"}
    on_sm120 = [row for row in rows if row["capability"] == "12.0"]
    assert max(row["shared"] for row in on_sm120) <= 101_376
    assert sum(row["spill_bytes"] for row in rows) == 0


def test_the_gpu_check_answers_rightly_where_there_is_no_gpu_and_says_what_it_needs(tmp_path: Path) -> None:
    script, out = ROOT / "scripts/gpu-check-mla", tmp_path / "result.md"
    done = subprocess.run(
        [engine_python(), script, "--tiny", "--out", out], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.with_suffix(".json").read_text())
    assert {row["cache"] for row in result["right"]} == {"bf16", "fp8", "packed"}
    assert all(row["right"] for row in result["right"])
    assert result["left_out"] == []
    assert "Triton's interpreter" in out.read_text()
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    refused = subprocess.run([engine_python(), script], capture_output=True, text=True, check=False, env=hidden)
    assert refused.returncode == 6
    assert "--tiny" in refused.stderr
